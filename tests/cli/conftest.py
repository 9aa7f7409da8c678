"""A running cluster of two agents for each module that asks for one, and commands run against it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.cli.main import main
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from load.dev_server import DevServer
from tests.cli.command_lines import Run, json_runner
from tests.forked_cluster import ForkedCluster


def two_agents(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> DevServer:
    """Return a cluster to start."""
    settings = {"linger.ms": 25, "group.initial.rebalance.delay.ms": 100}
    return ForkedCluster(postgres_server, tmp_path_factory.mktemp("dev"), agents=2, settings=settings)


@pytest.fixture(scope="module")
def server(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    with two_agents(postgres_server, tmp_path_factory) as running:
        yield running


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
