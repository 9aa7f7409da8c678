"""A SQLAlchemy Core query as a Statement: sent over the same pool, with the same limits and errors.

Place: between queries.py, where the read side for people and tools is written, and the pool.
Invariant: a report only reads, and has no parameters but those that its query names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Select
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from headrace.metastore.postgres.statement import Statement

_DIALECT = PGDialect_psycopg()  # type: ignore[no-untyped-call]


class ReportQuery(Statement):
    """Named after the function that makes its query; compiled when it is first sent."""

    def __init__(self, query: Callable[[], Select[Any]]) -> None:
        super().__init__(query.__name__, writes=False)
        self.query = query

    def _text(self) -> str:
        return str(self.query().compile(dialect=_DIALECT))
