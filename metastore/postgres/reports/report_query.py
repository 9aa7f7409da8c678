"""A SQLAlchemy Core query as a Statement: sent over the same pool, with the same limits and errors.

Place: between queries.py, where the read side for people and tools is written, and the pool.
Invariant: a report only reads, and has no parameters but those that its query names. SQLAlchemy is loaded with the
first report: an agent starts without it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.metastore.postgres.statement import Pool, Statement


class ReportQuery(Statement):
    """Made by the function `name` of queries.py; compiled when it is first sent."""

    def __init__(self, name: str) -> None:
        super().__init__(name, writes=False)
        self._function = name

    def _text(self) -> str:
        from headrace.metastore.postgres.reports.queries import compiled

        return compiled(self._function)

    async def rows(self, pool: Pool, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return rows as Statement.rows does. Compiled in a thread: SQLAlchemy takes 0.2 s to load, and agents ask for
        reports, too.
        """
        if "sql" not in self.__dict__:
            await asyncio.to_thread(lambda: self.sql)
        return await super().rows(pool, **parameters)
