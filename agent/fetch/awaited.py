"""What a fetch gets of the log: the extents that are there, or those that come while it waits.

Place: between handler.py, which knows requests, and the index with its feed.
Invariant: the wait ends when there is enough data, on an error, at the client's timeout or when the agent drains; never
later. A waiting fetch sends no queries: it looks at the index when the feed brought something. What this agent has
acknowledged is in the answer, or its high watermark shows that there is more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from headrace.agent.fetch.deliver import available_bytes
from headrace.agent.fetch.index.acknowledged import AcknowledgedEnds
from headrace.agent.fetch.index.feed import FeedFollower
from headrace.agent.fetch.index.index import LOOK_AGAIN
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.lookup import Lookup, LookupStatus, stable_part
from headrace.agent.fetch.waiters import Waiters
from headrace.metastore.api.read import ExtentQuery
from headrace.storage.clock import Clock


class AwaitedLog:
    """The logs of one agent, for fetches."""

    def __init__(
        self, locator: Locator, waiters: Waiters, acknowledged: AcknowledgedEnds, feed: FeedFollower, clock: Clock
    ) -> None:
        self._locator, self._waiters, self._acknowledged, self._feed = locator, waiters, acknowledged, feed
        self._clock = clock
        self.is_draining = False
        """Whether no fetch waits any more."""

    def drain(self) -> None:
        """Answer every waiting fetch with the available data; from now on no fetch waits."""
        self.is_draining = True
        self._waiters.notify_all(LOOK_AGAIN)

    def following(self, keys: Iterable[int]) -> AbstractContextManager[None]:
        """Follow the feed of these partitions: enter it while a fetch wants what comes next in them."""
        return self._feed.following(keys)

    async def extents(
        self, queries: Sequence[ExtentQuery], min_bytes: int, max_bytes: int, deadline: float, *, committed: bool
    ) -> list[Lookup]:
        """The extents, when there are `min_bytes` of them, or an error, or at the timeout."""
        keys = [query.partition_key for query in queries]
        self._feed.read(keys)
        lookups = await self._locate(queries, max_bytes, committed=committed)
        at_end = any(
            lookup.status is LookupStatus.FOUND and not lookup.extents and not lookup.cut for lookup in lookups
        )
        has_enough = self._missing(queries, lookups, min_bytes, deadline) <= 0
        if has_enough and not at_end:
            return lookups
        with self._feed.following(keys):
            if not has_enough:
                return await self._wait(queries, min_bytes, max_bytes, deadline, committed=committed)
            if min_bytes > 0 and self._clock.monotonic() < deadline:
                return lookups  # other partitions have enough: the next fetch sees these
            return await self._locate_acknowledged(queries, max_bytes, committed=committed)

    async def _wait(
        self, queries: Sequence[ExtentQuery], min_bytes: int, max_bytes: int, deadline: float, *, committed: bool
    ) -> list[Lookup]:
        with self._waiters.watch(query.partition_key for query in queries) as waiter:
            while True:
                waiter.reset()
                lookups = await self._locate(queries, max_bytes, committed=committed)
                missing = self._missing(queries, lookups, min_bytes, deadline)
                if missing <= 0:
                    return lookups
                await waiter.wait(missing, self._clock, deadline - self._clock.monotonic())

    async def _locate_acknowledged(
        self, queries: Sequence[ExtentQuery], max_bytes: int, *, committed: bool
    ) -> list[Lookup]:
        """Return at least what any agent had acknowledged before: for a fetch that does not wait."""
        await self._feed.catch_up()
        return await self._locate(queries, max_bytes, committed=committed)

    async def _locate(self, queries: Sequence[ExtentQuery], max_bytes: int, *, committed: bool) -> list[Lookup]:
        """Return what the index or the primary has: no less than what this agent had acknowledged before."""
        marks = self._acknowledged.marks(queries)  # a poll may end them while the look-up waits for the primary
        found = await self._locator.locate(queries, max_bytes)
        if marks is not None:
            if any(map(partial(self._acknowledged.is_missing, marks), queries, found)):
                await self._feed.catch_up()
                found = await self._locator.locate(queries, max_bytes)
            found = list(map(partial(self._acknowledged.raised, marks), queries, found))
        return list(map(stable_part, queries, found)) if committed else found

    def _missing(
        self, queries: Sequence[ExtentQuery], lookups: Sequence[Lookup], min_bytes: int, deadline: float
    ) -> int:
        """Number of bytes that must still arrive to end the wait; 0 if there is nothing to wait for."""
        if self.is_draining or self._clock.monotonic() >= deadline:
            return 0
        if any(lookup.status is not LookupStatus.FOUND or lookup.cut for lookup in lookups):
            return 0
        return min_bytes - sum(map(available_bytes, queries, lookups))
