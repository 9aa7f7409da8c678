"""A SQLAlchemy Core query as a Statement: sent over the same pool, with the same limits and errors.

Place: between queries.py, where the read side for people and tools is written, and the pool.
Invariant: a report only reads, and has no parameters but those that its query names. SQLAlchemy is loaded with the
first report: an agent starts without it.
"""

from __future__ import annotations

from headrace.metastore.postgres.statement import Statement


class ReportQuery(Statement):
    """Made by the function `name` of queries.py; compiled when it is first sent."""

    def __init__(self, name: str) -> None:
        super().__init__(name, writes=False)
        self._function = name

    def _text(self) -> str:
        from headrace.metastore.postgres.reports.queries import compiled

        return compiled(self._function)
