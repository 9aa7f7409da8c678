"""The command line as a whole: help that can be read, and an end without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cli.main import main

COMMANDS = [
    "dev",
    "agent",
    "compactor",
    "storage",
    "migrate",
    "audit",
    "topics",
    "groups",
    "configs",
    "records",
    "cluster",
    "dump-log",
    "shell",
    "version",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_begins_with_a_short_usage_and_says_what_the_command_is_for(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    usage, *sections = capsys.readouterr().out.split("\n\n")
    assert usage.startswith(f"usage: headrace {command} ")
    assert len(usage.splitlines()) <= 4
    if command != "version":
        assert any(f"  headrace {command}" in section for section in sections), "no example"


def test_every_command_is_in_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    overview = capsys.readouterr().out
    assert [line.split()[0] for line in overview.splitlines() if line[:4] == "    " and line[4:5].isalpha()] == COMMANDS


def test_whoever_stops_reading_ends_the_command_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "cli.main", "version"], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")
