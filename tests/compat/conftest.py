"""What tests with real clients share: a cluster of one agent and one of two, without faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from load.dev_server import DevServer
from tests.forked_cluster import ForkedCluster

SETTINGS: dict[str, object] = {
    "linger.ms": 5,
    "group.initial.rebalance.delay.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.session.timeout.ms": 10_000,  # a JVM starts within it on a busy machine
    "group.consumer.min.session.timeout.ms": 1_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}
"""What the tests of `server` wait for happens soon."""


@pytest.fixture(scope="package")
def one_agent(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """A single agent, so that what it answered it also shows; one for all that take it."""
    with ForkedCluster(postgres_server, tmp_path_factory.mktemp("dev"), settings={"linger.ms": 25}) as running:
        yield running


@pytest.fixture(scope="package")
def server(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """Two agents; one cluster for all that take it. A test names its topics and groups by what it tests."""
    with ForkedCluster(postgres_server, tmp_path_factory.mktemp("dev"), agents=2, settings=SETTINGS) as running:
        yield running
