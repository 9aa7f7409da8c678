"""One cluster for all tests of this folder, filled once, and consoles of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.cli.console.server import ConsoleServer
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from load.dev_server import DevServer
from tests.cli.console.scene import console_of, fill, with_tables
from tests.forked_cluster import ForkedCluster


@contextmanager
def serving(console: ConsoleServer) -> Iterator[ConsoleServer]:
    """Yield a console with two samples, and none by itself: what the pages show does not change meanwhile."""
    console.http.start()
    console.sampler.take()
    console.sampler.take()
    yield console
    console.http.stop()
    console.close()


@pytest.fixture(scope="package")
def cluster(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    settings = {"linger.ms": 25, "group.initial.rebalance.delay.ms": 100}
    with ForkedCluster(postgres_server, tmp_path_factory.mktemp("console"), agents=2, settings=settings) as running:
        fill(running.bootstrap)
        yield running


@pytest.fixture(scope="package")
def reading(cluster: DevServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleServer]:
    """Read-only, with the metastore, the agents' metrics and a catalog of tables."""
    settings = with_tables(cluster, tmp_path_factory.mktemp("tables"))
    with serving(console_of(cluster, settings=settings)) as console:
        yield console


@pytest.fixture(scope="package")
def changing(cluster: DevServer) -> Iterator[ConsoleServer]:
    """Yield a console with --allow-changes, and without the metastore."""
    with serving(console_of(cluster, allows_changes=True, with_metastore=False)) as console:
        yield console
