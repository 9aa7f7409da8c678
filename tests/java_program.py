"""Runs the tests' Java programs from compiled classes: compiling takes longer than most of them run.

`run_java` runs a program to its end in the one JVM of this test process; `java_command` is for programs that tests talk
to, or kill.
Invariant: a program is compiled once for what its source says, also if two test processes need it at the same time.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.tools.installing import TOOLS

FLAGS = ("-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Flags for programs that run for a few seconds."""
DRIVER = Path(__file__).with_name("JavaDriver.java")


def java_command(source: Path, class_path: str, *flags: str, parts: Sequence[Path] = ()) -> list[str]:
    """Return the command that runs the class that `source` is named after; arguments come after it.

    `parts`: other sources that it uses.
    """
    return ["java", *FLAGS, *flags, "-cp", f"{_classes([source, *parts], class_path)}:{class_path}", source.stem]


def run_java(
    source: Path, class_path: str, *arguments: str, stdin: str = "", parts: Sequence[Path] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the class that `source` is named after, and return its status (1: it threw) and what it wrote.

    It runs in the JVM of the programs before it, and gets new classes. It must not call System.exit.
    """
    places = ":".join(place for path in class_path.split(":") for place in sorted(_expanded(path)))
    classes = f"{_classes([source, *parts], class_path)}/"
    answer = _driver().ask([places, classes, source.stem, stdin, *arguments])
    return subprocess.CompletedProcess([source.stem, *arguments], *answer)


class _Driver:
    """A JVM with tests/JavaDriver.java; it ends with this process, which holds its standard input."""

    def __init__(self) -> None:
        command = java_command(DRIVER, str(DRIVER.parent))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, fields: Sequence[str]) -> tuple[int, str, str]:
        """Return the answer to a request: status, standard output, standard error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(base64.b64encode(field.encode()).decode() for field in fields) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the JVM of the tests ended with status {self._process.wait()} during {fields[2]}")
        status, output, errors = answer.rstrip("\n").split("\t")
        return int(status), base64.b64decode(output).decode(), base64.b64decode(errors).decode()


@cache
def _driver() -> _Driver:
    return _Driver()


def _expanded(path: str) -> list[str]:
    """Return the jars of `folder/*`, as java does for a class path."""
    return glob.glob(f"{path}.jar") if path.endswith("/*") else [path]


def _classes(sources: Sequence[Path], class_path: str) -> Path:
    source = sources[0]
    content = b"".join(path.read_bytes() for path in sources)
    digest = hashlib.sha256(content + class_path.encode()).hexdigest()[:16]
    place = TOOLS / "java" / "programs" / f"{source.stem}-{digest}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(prefix=place.name, dir=place.parent)
        subprocess.run(["javac", "-d", made, "-cp", class_path, *map(str, sources)], check=True)
        try:
            os.rename(made, place)
        except OSError:
            if not place.is_dir():
                raise
    return place
