"""A transaction that keeps its snapshot for as long as its server runs, as pg_dump and a forgotten BEGIN do.

Invariant: it only reads. On each server that becomes the metastore, a new one is opened soon.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import psycopg

LOOK_SECONDS = 1.0


class HeldSnapshot:
    """`url` says where the metastore is now, None if nowhere; `opened` counts how often it had to begin again."""

    def __init__(self, url: Callable[[], str | None]) -> None:
        self.opened = 0
        self._url = url

    async def hold(self) -> None:
        """Hold the snapshot until cancelled."""
        while True:
            if (url := self._url()) is not None:
                with contextlib.suppress(psycopg.Error):  # the server goes away
                    await self._hold_one(url)
            await asyncio.sleep(LOOK_SECONDS)

    async def _hold_one(self, url: str) -> None:
        async with await psycopg.AsyncConnection.connect(url, connect_timeout=5) as connection:
            await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await connection.execute("SELECT count(*) FROM partition_heads")
            self.opened += 1
            while url == self._url():
                await asyncio.sleep(LOOK_SECONDS)
                await connection.execute("SELECT 1")
