"""One running cluster of two agents for all tests of this folder; each names its topics, groups and users."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from load.dev_server import DevServer
from tests.cli.conftest import two_agents


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    with two_agents(tmp_path_factory) as running:
        yield running
