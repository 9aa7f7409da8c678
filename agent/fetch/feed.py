"""The feed follower: one poll per agent keeps the index fresh, not one query per consumer.

Place: between the metastore's commit feed and the index; wakes waiting fetches; estimates the
database's clock for file ids.
Invariant: rows reach the index in the order of the feed, one page at a time. A poll that fails
changes nothing; one that fails in an unforeseen way makes the index forget everything, so that
readers ask the primary rather than trust a half-applied page.
If the process dies here nothing is lost: the next one starts at the feed's heads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from agent.fetch.index import TailIndex
from agent.fetch.metrics import FetchMetrics
from agent.fetch.waiters import Waiters
from metastore.api import ReadApi
from metastore.values import FeedPage
from storage.clock import Clock
from storage.errors import HeadraceError, UnavailableError

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.25
"""Between polls while the metastore does not answer."""


class FeedFollower:
    """Polls every `interval_ms`, and at once after `poke`. `on_metadata` hears each page's metadata offset."""

    def __init__(
        self,
        metastore: ReadApi,
        index: TailIndex,
        waiters: Waiters,
        clock: Clock,
        metrics: FetchMetrics,
        *,
        interval_ms: int,
        on_metadata: Callable[[int], None],
    ) -> None:
        self._metastore = metastore
        self._index = index
        self._waiters = waiters
        self._clock = clock
        self._metrics = metrics
        self._interval = interval_ms / 1000
        self._on_metadata = on_metadata
        self._poked = asyncio.Event()
        self._wall_minus_monotonic: float | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Poll once, then keep polling. Raises what the first poll raises."""
        await self._poll()
        self._task = asyncio.create_task(self._follow(), name="feed-follower")

    async def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def poke(self) -> None:
        """Something was committed here: poll without waiting for the next turn."""
        self._poked.set()

    def database_now_ms(self) -> int:
        """The database's clock, at most one poll's round trip late. UnavailableError before the first poll."""
        if self._wall_minus_monotonic is None:
            raise UnavailableError("database clock unknown: the feed was not polled yet")
        return int((self._wall_minus_monotonic + self._clock.monotonic()) * 1000)

    async def _follow(self) -> None:
        while True:
            try:
                behind = await self._poll()
                pause = 0.0 if behind else self._interval
            except HeadraceError as error:
                self._metrics.feed_polls.labels("failed").inc()
                log.warning("feed poll failed: error=%s", error)
                pause = max(RETRY_SECONDS, self._interval)
            except Exception:
                self._metrics.feed_polls.labels("failed").inc()
                log.exception("feed poll failed in an unforeseen way: index forgotten")
                self._waiters.notify(self._index.forget_all())
                pause = max(RETRY_SECONDS, self._interval)
            await self._pause(pause)

    async def _poll(self) -> bool:
        """One page. True when the feed holds more than the page did."""
        self._poked.clear()
        page = await self._metastore.poll_feed(self._index.positions)
        self._wall_minus_monotonic = page.wall_ms / 1000 - self._clock.monotonic()
        self._metrics.feed_polls.labels("ok").inc()
        if page.lost_shards:
            self._metrics.feed_lost_shards.inc(len(page.lost_shards))
            log.warning("feed lost: shards=%s", page.lost_shards)
        self._waiters.notify(self._index.apply(page))
        self._on_metadata(page.metadata_offset)
        return self._is_behind(page)

    def _is_behind(self, page: FeedPage) -> bool:
        positions = self._index.positions
        return bool(page.rows) and any(positions[shard] < head for shard, head in page.heads.items())

    async def _pause(self, seconds: float) -> None:
        """Sleep, or wake up early when poked."""
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        poked = asyncio.ensure_future(self._poked.wait())
        try:
            await asyncio.wait((timer, poked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            poked.cancel()
