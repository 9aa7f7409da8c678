"""The command line as a whole: help that can be read, and an end without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.cli.commands import make_parser
from headrace.cli.main import main
from headrace.cli.options import settings_from
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.snapshot import encode_snapshot

ROOT = Path(__file__).resolve().parents[2]

COMMANDS = [
    "dev",
    "agent",
    "compactor",
    "storage",
    "migrate",
    "postgres",
    "planners",
    "doctor",
    "backup",
    "audit",
    "damage",
    "topics",
    "partitions",
    "groups",
    "configs",
    "users",
    "acls",
    "quotas",
    "clients",
    "features",
    "transactions",
    "records",
    "cluster",
    "console",
    "top",
    "segments",
    "export",
    "link",
    "tables",
    "dump-log",
    "shell",
    "bench",
    "cost",
    "completion",
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


def test_the_version_is_a_command_and_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    by_flag = capsys.readouterr().out
    assert main(["version"]) == 0
    assert capsys.readouterr().out == by_flag
    assert by_flag.startswith(f"headrace {headrace.__version__} (Python ")


@pytest.mark.parametrize(
    ("command", "own"),
    [
        ("shell", "--metastore-url"),
        ("dump-log", "--s3-endpoint"),
        ("storage format", "--bucket"),
        ("storage info", "--bucket"),
        ("migrate", "--commit-shards"),
        ("audit", "--s3-endpoint"),
    ],
)
def test_a_tools_help_lists_the_settings_that_concern_it(
    command: str, own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert own in shown
    assert not [other for other in ("--linger-ms", "--listeners", "every other setting") if other in shown]
    words = [*command.split(), *(["-t", "x"] if "format" in command else []), "--node-id", "7"]
    assert settings_from(make_parser(words).parse_args(words)).node_id == 7, (
        "what one file of settings holds, flags may say, too"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["version"],
        pytest.param(["--help"], marks=pytest.mark.slow),
        pytest.param(["topics", "--help"], marks=pytest.mark.slow),
        ["shell", "-s", "snapshot", "find"],
    ],
)
def test_a_closed_pipe_ends_the_command_quietly(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "snapshot").write_bytes(encode_snapshot(MetadataImage()))
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *words],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")
