"""A running cluster of two agents for each module that asks for one, and commands run against it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.cli.main import main
from load.dev_server import DevServer
from tests.cli.command_lines import Run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    settings = {"linger.ms": 25, "group.initial.rebalance.delay.ms": 100}
    with DevServer(tmp_path_factory.mktemp("dev"), agents=2, settings=settings) as running:
        yield running


@pytest.fixture
def run(server: DevServer, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command with --json; what it printed, decoded. A number is its exit status."""

    def run(*words: str, status: int = 0) -> Any:
        capsys.readouterr()
        assert main([*words, "-b", server.bootstrap, "--json"]) == status
        shown = capsys.readouterr()
        if status:
            return shown.err
        lines = [json.loads(line) for line in shown.out.splitlines()]
        return lines[0] if len(lines) == 1 and words[1] != "consume" else lines

    return run


@pytest.fixture
def plain(server: DevServer, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command as people do; the words of each line."""

    def run(*words: str) -> list[list[str]]:
        capsys.readouterr()
        assert main([*words, "-b", server.bootstrap]) == 0
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    return run
