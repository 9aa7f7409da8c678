"""What type checkers see of the boundary: `make check` reads this file, and nothing runs it.

Invariant: an operation that is one line has the signature of its Protocol. Nothing of it is Any, and another argument
is an error, which the comments below expect: one that is not needed is an error, too.
"""

from __future__ import annotations

import uuid
from typing import assert_type

from headrace.metastore.api.files import DeadFile
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.postgres.store import PostgresMetastore

BOUNDARY: type[Metastore] = PostgresMetastore  # mypy compares the signatures


async def operations_of_one_line(store: PostgresMetastore, token: JobToken, some: uuid.UUID) -> None:
    """Calls as callers make them, and wrong ones."""
    assert_type(await store.files.drop_files(token, [some]), int)
    assert_type(await store.files.take_dead_files(token, some, limit=1), list[DeadFile])
    await store.files.drop_files(token, [1])  # type: ignore[list-item]
    await store.files.unnamed_files(ids=[])  # type: ignore[call-arg]
