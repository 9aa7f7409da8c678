"""Limits on what clients make the metastore keep: transactional ids, producer states, committed offsets and groups.

Place: asked by InitProducerId, by OffsetCommit, and before a group is claimed for the first time; housekeeping.py
counts once in a while, for the metrics.
Invariant: what is stored already is never refused: the caller looks whether it is, once there is no room. Nothing is
counted for a request: the agent holds the result of the last minute and adds what it let through since. So agents
together may exceed a limit by what they let through in a minute. Without an answer of the metastore there is room.
All clients of the cluster are counted together: rows have no principal.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Gauge

from headrace.config.settings import Settings
from headrace.metastore.api.housekeeping import RowCounts
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

FRESH_SECONDS = 60.0
"""A count is used for so long."""
AGAIN_SECONDS = 5.0
"""Seconds after which rows are counted again if there was no room."""
WARN_SHARE = 0.8

TRANSACTIONAL_IDS: Final = "max.transactional.ids"
PRODUCER_STATES: Final = "max.producer.states"
COMMITTED_OFFSETS: Final = "max.committed.offsets"


class RowUse(NamedTuple):
    """How full one limit is: its setting, about how many rows there are, and the most that new ones may add to."""

    limit: str
    rows: int
    most: int

    @property
    def is_nearly_full(self) -> bool:
        """Whether an operator should know."""
        return self.rows >= WARN_SHARE * self.most


def row_use(counts: RowCounts, settings: Settings) -> list[RowUse]:
    """Compare the counts with each limit in force."""
    return [
        RowUse(TRANSACTIONAL_IDS, counts.transactional_ids, settings.max_transactional_ids),
        RowUse(PRODUCER_STATES, counts.producer_states, settings.max_producer_states),
        RowUse(COMMITTED_OFFSETS, counts.committed_offsets, settings.max_committed_offsets),
    ]


class RowLimits(Protocol):
    """Whether the cluster has room."""

    async def has_room(self, limit: str, rows: int = 1) -> bool:
        """Return whether so many more rows of the limit with this name may be added."""

    def refused(self, limit: str) -> None:
        """Count a request that was refused."""


class ClientRows:
    """The limits as one agent applies them."""

    def __init__(
        self,
        count: Callable[[], Awaitable[RowCounts]],
        settings: Callable[[], Settings],
        clock: Clock,
        on_limit: Callable[[str], None],
        registry: CollectorRegistry,
    ) -> None:
        """`settings`: as they are in force now. `on_limit` counts refusals, by the name of the setting."""
        self._count, self._settings, self._clock, self.refused = count, settings, clock, on_limit
        self._counts = RowCounts(0, 0, 0)
        self._counted_at: float | None = None
        self._let_through: Counter[str] = Counter()
        """Since the last count; also what was stored already."""
        self._counting = asyncio.Lock()
        self._warned: set[str] = set()
        self._shown = Gauge(
            "headrace_client_rows",
            "Rows of the metastore that clients caused, about, by the setting that limits them",
            ["limit"],
            registry=registry,
        )
        self._shown_limit = Gauge(
            "headrace_client_rows_limit", "The most rows that new clients may add to", ["limit"], registry=registry
        )

    async def has_room(self, limit: str, rows: int = 1) -> bool:
        """See RowLimits."""
        await self._count_after(FRESH_SECONDS)
        if self._is_full(limit):
            await self._count_after(AGAIN_SECONDS)
        if self._is_full(limit):
            return False
        self._let_through[limit] += rows
        return True

    async def refresh(self) -> None:
        """Count now. HeadraceError if the metastore does not answer."""
        self._counts = await self._count()
        self._counted_at = self._clock.monotonic()
        self._let_through.clear()
        self._show()

    def _is_full(self, limit: str) -> bool:
        (use,) = [use for use in row_use(self._counts, self._settings()) if use.limit == limit]
        return use.rows + self._let_through[limit] >= use.most

    async def _count_after(self, seconds: float) -> None:
        if not self._is_older(seconds):
            return
        async with self._counting:
            if not self._is_older(seconds):
                return
            try:
                await self.refresh()
            except HeadraceError as error:
                self._counted_at = self._clock.monotonic()
                logger.warning("rows of clients not counted: error=%s", error)

    def _is_older(self, seconds: float) -> bool:
        return self._counted_at is None or self._clock.monotonic() - self._counted_at >= seconds

    def _show(self) -> None:
        for use in row_use(self._counts, self._settings()):
            self._shown.labels(use.limit).set(use.rows)
            self._shown_limit.labels(use.limit).set(use.most)
            if not use.is_nearly_full:
                self._warned.discard(use.limit)
            elif use.limit not in self._warned:
                self._warned.add(use.limit)
                logger.warning("clients nearly reach a limit of the metastore: limit=%s rows=%d max=%d", *use)
