"""Other programs that tests and loads need: which there are, and how they are installed.

Place: `make test` runs `python -m load.tools` first; tests ask `why_missing` and skip by that reason, and the
table at the end of a test run (tests/house/skip_table.py) checks that nothing was skipped although its tool is there.
Invariant: versions are pinned and contents are checked: by go.sum, by package-lock.json, by Maven's checksums.
Everything is installed below one folder, TOOLS; nothing needs root, and nothing outside TOOLS changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TOOLS = Path(os.environ.get("HEADRACE_TEST_TOOLS", Path.home() / ".cache" / "headrace-test-tools"))
COMMAND = "python -m load.tools"
"""Installs what can be installed."""
VERSITYGW = TOOLS / "bin" / "versitygw"
KAFKAJS = TOOLS / "node_modules" / "kafkajs"
JAVA_LIBRARIES = TOOLS / "java" / "lib"
JAVA_CLASSES = TOOLS / "java" / "classes"
KAFKA_JARS = TOOLS / "kafka" / "lib"
"""Apache Kafka's server and its load generator, for `headrace bench`."""


class InstallError(Exception):
    """An installer ended with an error; the message is the last line of its output."""


@dataclass(frozen=True, slots=True)
class Tool:
    """`needs`: programs that must be on PATH to install and to run it. `install` None: a person installs it."""

    name: str
    what: str
    needs: tuple[str, ...]
    is_installed: Callable[[], bool]
    install: Callable[[], None] | None
    enable: str
    """The command that makes it available."""

    @property
    def missing_programs(self) -> list[str]:
        return [program for program in self.needs if shutil.which(program) is None]

    @property
    def is_present(self) -> bool:
        return not self.missing_programs and self.is_installed()

    def why_missing(self) -> str | None:
        """The reason by which a test that needs it is skipped; None if it is there."""
        return None if self.is_present else f"needs {self.name}"


def _run(*command: str, cwd: Path | None = None, **environment: str) -> None:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
        raise InstallError(lines[-1])


def _install_versitygw() -> None:
    VERSITYGW.parent.mkdir(parents=True, exist_ok=True)
    _run(
        "go", "build", "-mod=readonly", "-o", str(VERSITYGW), "github.com/versity/versitygw/cmd/versitygw",
        cwd=HERE / "go",
    )  # fmt: skip


def _install_kafkajs() -> None:
    TOOLS.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / "node" / name, TOOLS / name)
    _run("npm", "ci", "--no-fund", "--no-audit", "--prefix", str(TOOLS))


def _copy_jars(pom: Path, place: Path) -> None:
    """The dependencies of a pom, resolved by Maven."""
    _run(
        "mvn", "--quiet", "--batch-mode", "--strict-checksums", "-f", str(pom), "dependency:copy-dependencies",
        f"-DoutputDirectory={place}",
    )  # fmt: skip


def _install_java_client() -> None:
    JAVA_CLASSES.mkdir(parents=True, exist_ok=True)
    _copy_jars(HERE / "java" / "pom.xml", JAVA_LIBRARIES)
    sources = [str(path) for path in sorted((HERE / "java").glob("*.java"))]
    _run("javac", "-d", str(JAVA_CLASSES), "-cp", f"{JAVA_LIBRARIES}/*", *sources)


ALL = {
    tool.name: tool
    for tool in (
        Tool("versitygw", "a real S3 server", ("go",), VERSITYGW.exists, _install_versitygw, COMMAND),
        Tool("kafkajs", "Kafka's client for Node.js", ("node", "npm"), KAFKAJS.exists, _install_kafkajs, COMMAND),
        Tool(
            "kafka-clients",
            "Kafka's own Java client",
            ("java", "javac", "mvn"),
            lambda: any(JAVA_CLASSES.glob("*.class")),
            _install_java_client,
            COMMAND,
        ),
        Tool(
            "kafka",
            "Apache Kafka 4.1.1 itself",
            ("java", "mvn"),
            lambda: any(KAFKA_JARS.glob("kafka_*.jar")),
            lambda: _copy_jars(HERE / "kafka" / "pom.xml", KAFKA_JARS),
            COMMAND,
        ),
        Tool("kcat", "a client on librdkafka", ("kcat",), lambda: True, None, "apt-get install kcat"),
        Tool("java", "Java 17 for Spark", ("java",), lambda: True, None, "apt-get install default-jre-headless"),
    )
}


def why_missing(name: str) -> str | None:
    """The reason by which a test that needs this tool is skipped; None if the tool is there."""
    return ALL[name].why_missing()
