"""Flink SQL, exactly once: a count by key is killed while it works, and continues from its last checkpoint.

Flink is its table API with a cluster in one process, because the SQL client cannot be resolved with Maven
(tests/tools/flink). RunSql.java runs the example's statements as `sql-client.sh -f` does.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.compat.apps.app import JavaApp
from tests.compat.apps.counting import ROUNDS, Words
from tests.examples import text
from tests.tools import FLINK_JARS

pytestmark = [
    pytest.mark.requirement("X1"),
    pytest.mark.slow,
    pytest.mark.needs("flink"),
]
PROGRAM = Path(__file__).with_name("RunSql.java")
KILLS = 3
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
OPENED = ("java.lang", "java.net", "java.nio", "java.time", "java.util", "java.util.concurrent")
"""Packages of the JVM that Flink needs to be open to it, as its start scripts do."""


def _start(folder: Path, script: Path) -> JavaApp:
    """Start from the newest complete checkpoint, if there is one."""
    complete = [path.parent for path in (folder / "checkpoints").glob("*/chk-*/_metadata")]
    newest = max(complete, key=lambda path: path.stat().st_mtime, default=None)
    command = ["RunSql", str(script), *([f"execution.state-recovery.path={newest.as_uri()}"] if newest else [])]
    flags = [QUIET, *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED)]
    return JavaApp([folder, f"{FLINK_JARS}/*"], command, folder / "log", flags)


@pytest.mark.parametrize("bootstrap", ["headrace", "kafka"], indirect=True)
def test_a_killed_count_goes_on_from_its_checkpoint(bootstrap: str, tmp_path: Path) -> None:
    subprocess.run(["javac", "-d", str(tmp_path), "-cp", f"{FLINK_JARS}/*", str(PROGRAM)], check=True, timeout=300)
    words = Words(bootstrap, "flink")
    script = tmp_path / "counts.sql"
    changes = {"127.0.0.1:9092": bootstrap, "file:///tmp/flink-checkpoints": (tmp_path / "checkpoints").as_uri()}
    script.write_text(text("flink/counts.sql", changes))
    for life in range(KILLS + 1):
        with _start(tmp_path, script) as app:
            for _ in range(ROUNDS // KILLS):
                words.produce()
            app.until(lambda: words.are_counted(lambda value: (None, int(value))), "every record is counted once")
            if life < KILLS:
                words.produce()  # is being counted when it is killed
                app.kill()
    for key, values in words.counts().items():
        assert [int(value) for value in values] == list(range(1, len(values) + 1)), key
