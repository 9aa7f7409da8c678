"""What tests with real clients share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from load.dev_server import DevServer


@pytest.fixture(scope="session")
def one_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """`headrace dev` with a single agent, so that what it answered it also shows; one for all that take it."""
    with DevServer(tmp_path_factory.mktemp("dev"), settings={"linger.ms": 25}) as running:
        yield running
