"""The cluster of `headrace dev` from code and a Postgres that the tests' process has already.

Place: for tests in which it does not matter how the cluster was started; those of `headrace dev` itself, and of what it
starts besides agents, take load/dev_server.py. It costs 0.3 s of CPU for each agent and 0.2 s for its database,
where the command takes 2 s and more.
Invariant: the agents and the new database have the values that `headrace dev` gives to its own.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import psycopg
import pytest

from headrace.cli.storage import format_bucket
from headrace.config.cluster_values import proposed
from headrace.config.load import load
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import migrate
from load.dev_server import AgentAddress, DevServer
from tests.agent_process import AgentUnderTest

FEED_POLL_MS = 50
"""While consumers wait at the end, as they do in most tests, an agent polls every 15 ms by default: more than it needs
there.
"""
_numbers = itertools.count(1)


class ForkedCluster(DevServer):
    """Started on entry and ready for clients; everything of it ends, and its database is dropped, on leaving."""

    def __init__(
        self,
        server: EmbeddedPostgres,
        data_dir: Path,
        *,
        agents: int = 1,
        settings: Mapping[str, object] | None = None,
        errors: Path | None = None,
    ) -> None:
        """`settings`: dotted names, as in a properties file. `errors`: a file for the agents' log, else stderr."""
        super().__init__(data_dir, agents=agents)
        self._server = server
        self._log = errors
        self._database = f"cluster_{next(_numbers)}"
        self.metastore_url = server.url(self._database)
        self.bucket = (data_dir / "bucket").as_uri()
        usual = {"log.level": "warning", "feed.poll.interval.ms": FEED_POLL_MS}
        self._settings: dict[str, object] = {**usual, **(settings or {})}
        self._settings |= {"metastore.url": self.metastore_url, "bucket": self.bucket}
        self._settings["process.roles"] = "broker,compactor,controller"
        self._stack = ExitStack()

    def __enter__(self) -> ForkedCluster:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self) -> None:
        self._run(f"CREATE DATABASE {self._database}")
        self._stack.callback(self._run, f"DROP DATABASE {self._database} WITH (FORCE)")
        given = load(flags={name: str(value) for name, value in self._settings.items()})
        (self._data_dir / "bucket").mkdir(parents=True)
        cluster_id = migrate(self.metastore_url, values=proposed(given)).cluster_id
        asyncio.run(format_bucket(given, cluster_id))
        numbers = range(1, self._count + 1)
        agents = [AgentUnderTest(self._settings | {"node.id": number}, errors=self._log) for number in numbers]
        with ThreadPoolExecutor(self._count) as pool:
            list(pool.map(self._stack.enter_context, agents))
        for agent in agents:
            self._stack.callback(agent.terminate)  # all before the first is waited for
        self.agents = [AgentAddress(each.node_id, each.kafka, each.http, each.process_id) for each in agents]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _run(self, sql: str) -> None:
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            connection.execute(sql)


def shared_cluster(
    *, scope: Literal["module", "package"] = "module", agents: int = 1, settings: Mapping[str, object] | None = None
) -> Any:
    """A fixture with the name that it is assigned to: a cluster for all tests of a module or package that take it."""

    @pytest.fixture(scope=scope)
    def cluster(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
        folder = tmp_path_factory.mktemp("cluster")
        with ForkedCluster(postgres_server, folder, agents=agents, settings=settings) as running:
            yield running

    return cluster
