"""Tests of one xdist group run in one process, so that their agents, servers and Spark session are started once.

pytest 9.2 with pytest-xdist 3.8 ignored the groups without a word: this is how it would be noticed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """\
import os, pathlib, pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(8))
def test_writes_its_process(number):
    pathlib.Path(__file__).with_name(f"{number}.pid").write_text(str(os.getpid()))
"""


def test_a_group_runs_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "test_group.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    subprocess.run([*command, "-c", "/dev/null", "--rootdir", tmp_path, tmp_path], check=True, capture_output=True)
    processes = {path.read_text() for path in tmp_path.glob("*.pid")}
    assert len(list(tmp_path.glob("*.pid"))) == 8
    assert len(processes) == 1
