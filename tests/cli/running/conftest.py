"""One running cluster of two agents for all tests of this folder; each names its topics, groups and users."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from load.dev_server import DevServer
from tests.cli.conftest import two_agents


@pytest.fixture(scope="package")
def server(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    with two_agents(postgres_server, tmp_path_factory) as running:
        yield running
