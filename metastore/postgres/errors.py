"""psycopg's errors as storage/errors.py: what happened, by what the server did with the statement.

Place: around every statement that the metastore sends.
Invariant: every statement is a separate transaction, so an error that Postgres reports with
severity ERROR rolled all of it back: nothing happened. Errors of class 08 (connections) come from a pooler that lost
the server, perhaps after the commit: as a connection that breaks, they leave the outcome of a writing statement
unknown. Reading, connecting and migrating can simply be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from headrace.storage.errors import (
    AlreadyExistsError,
    FencedError,
    HeadraceError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)

_INVALID_CLASSES = frozenset({"0A", "21", "22", "23", "42", "54", "P0"})
"""Not supported, cardinality, data, constraint, syntax or access rule, size limit, raised by a function."""

_CONNECTION_CLASS = "08"

_JOB_IS_LOST = "HR001"
"""Raised by assert_job: another worker holds the lease."""

_ANOTHER_LIFE = "HR002"
"""Raised by assert_life: the server is not the one that the caller's life of the metastore was begun on. Nothing
happened, and it may be repeated once the process knows the life that follows (metastore/life)."""

_NO_PARTITION = "HR004"
"""Raised by write_transaction: a partition was deleted, which the caller does not know yet."""

_BULK_WRITES_ARE_LEFT = "HR005"
"""Raised by assert_no_bulk_writes: a topic grows when decided bulk writes are complete. Nothing happened."""

_NOT_MIGRATED = frozenset({"42P01", "42703", "42883"})
"""Undefined table, column, function."""


@contextmanager
def translated(operation: str, *, writes: bool) -> Iterator[None]:
    """Raise what `storage.errors` says instead of psycopg's error. `operation` opens the message."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, operation, writes=writes) from error


def translate(error: psycopg.Error, operation: str, *, writes: bool) -> HeadraceError:
    """The HeadraceError for a failed statement (`writes`: whether it would have changed anything)."""
    message = f"{operation} failed: sqlstate={error.sqlstate or 'none'} {_summary(error)}"
    if error.sqlstate in _NOT_MIGRATED:
        message += " (new storage: run `headrace storage format`; after an upgrade: run `headrace migrate`)"
    if isinstance(error, PoolTimeout | PoolClosed | TooManyRequests):
        return UnavailableError(message)
    if isinstance(error, psycopg.errors.UniqueViolation):
        return AlreadyExistsError(message)
    if error.sqlstate == _JOB_IS_LOST:
        return FencedError(message)
    if error.sqlstate in (_ANOTHER_LIFE, _BULK_WRITES_ARE_LEFT):
        return UnavailableError(message)
    if error.sqlstate == _NO_PARTITION:
        return NotFoundError(message)
    if _rolled_back(error):
        invalid = error.sqlstate is not None and error.sqlstate[:2] in _INVALID_CLASSES
        return InvalidError(message) if invalid else UnavailableError(message)
    if error.sqlstate is None and not isinstance(error, psycopg.OperationalError):
        return InvalidError(message)  # psycopg refused the parameters: nothing was sent
    return OutcomeUnknownError(message) if writes else UnavailableError(message)


def _rolled_back(error: psycopg.Error) -> bool:
    """The server answered that the statement failed, and keeps the session.

    FATAL and PANIC end the session, and may come after the statement was committed; a pooler may
    say then, too, that it lost the server.
    """
    if error.sqlstate is None or error.sqlstate.startswith(_CONNECTION_CLASS):
        return False
    return error.diag.severity_nonlocalized == "ERROR"


def _summary(error: psycopg.Error) -> str:
    """Return what Postgres said, in one line: the message, its detail, and where it was added to."""
    message, *_ = str(error).splitlines() or [type(error).__name__]
    notes = getattr(error, "__notes__", [])
    return " ".join(part for part in (message, error.diag.message_detail, *notes) if part)
