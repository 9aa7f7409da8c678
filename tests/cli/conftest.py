"""A running cluster of two agents for each module that asks for one, and commands run against it."""

from __future__ import annotations

import pytest

from headrace.cli.main import main
from load.dev_server import DevServer
from tests.cli.command_lines import Run, json_runner
from tests.forked_cluster import shared_cluster

SETTINGS = {"linger.ms": 25, "group.initial.rebalance.delay.ms": 100}
server = shared_cluster(agents=2, settings=SETTINGS)


@pytest.fixture
def run(server: DevServer, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command with --json; what it printed, decoded. A number is its exit status."""
    return json_runner(server.bootstrap, capsys)


@pytest.fixture
def plain(server: DevServer, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command as people do; the words of each line."""

    def run(*words: str) -> list[list[str]]:
        capsys.readouterr()
        assert main([*words, "-b", server.bootstrap]) == 0
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    return run
