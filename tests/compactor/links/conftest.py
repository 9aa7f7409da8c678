"""A session of the database for the tests of links."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.metastore.sessions import Session, session


@pytest.fixture
async def raw(metastore_url: str) -> AsyncIterator[Session]:
    """A session for what no operation of the metastore shows."""
    async with session(metastore_url) as found:
        yield found
