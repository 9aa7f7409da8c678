"""All tests of the metastore call its operations with arguments that change while they wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.live_arguments import spoil_arguments
from tests.metastore.key_claims import Connection
from tests.metastore.sessions import Session, session


@pytest.fixture(autouse=True, scope="module")
def arguments_that_change() -> Iterator[None]:
    """See tests/live_arguments.py. For a whole module: to look for the operations takes ten milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        spoil_arguments(patch, PostgresMetastore)
        yield


@pytest.fixture
async def raw(metastore_url: str) -> AsyncIterator[Session]:
    """A session of the test's own."""
    async with session(metastore_url) as connection:
        yield connection


@pytest.fixture(scope="module")
def one_session(module_metastore_url: str) -> Iterator[Connection]:
    """One for all tests of a module: each rolls its transaction back."""
    with psycopg.connect(module_metastore_url) as connection:
        yield connection
