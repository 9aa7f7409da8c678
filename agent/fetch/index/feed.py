"""The feed follower: one poll per agent keeps the index up to date, instead of one query per consumer.

Place: between the metastore's commit feed and the index; wakes waiting fetches; estimates the
database's clock for file ids.
Without consumers at the log's end it polls rarely: no answer depends on an up-to-date index, because the primary is
asked for everything that it lacks, and a fetch that reaches the end starts with a poll. Consumers that read what is
behind the end cost no polls.
It asks for the commit shards that the index follows (followed_shards.py). Heads of all shards, the database's clock and
the end of the metadata log are in each page, also of shards that are not followed.
Invariant: rows reach the index in the order of the feed, one page at a time. A failed poll
changes nothing; after an unexpected failure the index forgets everything, so that
readers ask the primary and never use a half-applied page. If a page begins another history or rows are lost, every
waiting fetch looks again: what it waits for may have passed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.agent.fetch.index.followed_shards import FollowedShards
from headrace.agent.fetch.index.index import LOOK_AGAIN, TailIndex
from headrace.agent.fetch.index.own_commits import AcknowledgedEnds, OwnCommits, appended_extents
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.waiters import Waiters
from headrace.metastore.api.commit import FileAnswer, FileCommit
from headrace.metastore.api.read import Extent, IndexApi
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, UnavailableError
from headrace.storage.supervision import Supervisor

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.25
"""Pause between polls while the metastore does not answer."""
IDLE_SECONDS = 0.1
"""Pause between polls without consumers at the end: new data may wait, and the first to get there polls at once."""
QUIET_SECONDS = 10.0
"""The same when nothing has happened for QUIET_AFTER_SECONDS: a cluster without clients costs little. The metadata log
is followed by heartbeats, which are more frequent, and a client that names an unknown topic makes the agent catch
up."""
QUIET_AFTER_SECONDS = 5.0
FOLLOWERS_LINGER_SECONDS = 0.1
"""A consumer that was at the end within this time is expected to be there again. One that comes later polls at once."""


@dataclass(frozen=True, slots=True)
class FollowedTail:
    """What the feed moves."""

    index: TailIndex
    acknowledged: AcknowledgedEnds
    waiters: Waiters
    followed: FollowedShards | None = None
    """None to follow all commit shards."""


class FeedFollower:
    """Polls every `interval_ms` while consumers follow the end, and at once when the answer to a commit of this agent
    does not tell all; rarely otherwise.

    `on_metadata` is called with each page's metadata offset.
    """

    def __init__(
        self,
        metastore: IndexApi,
        tail: FollowedTail,
        clock: Clock,
        metrics: FetchMetrics,
        supervisor: Supervisor,
        *,
        interval_ms: int,
        on_metadata: Callable[[int], None],
    ) -> None:
        self._metastore = metastore
        self._index, self._acknowledged = tail.index, tail.acknowledged
        self._waiters, self._followed = tail.waiters, tail.followed
        self._clock = clock
        self._metrics = metrics
        self._interval = interval_ms / 1000
        self._on_metadata = on_metadata
        self._own = OwnCommits()
        self._supervisor = supervisor
        self._poked = False
        self._timer: asyncio.Future[None] | None = None
        """Runs between two polls."""
        self._followers = 0
        self._followed_at = -math.inf
        self._moved_at = -math.inf
        """When a poll found something, this agent committed, or a consumer asked for records."""
        self._metadata_offset = -1
        self._heads: Mapping[int, int] = {}
        """Heads of all shards, as of the newest page."""
        self._wall_minus_monotonic: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._catching_up: list[asyncio.Future[None]] = []
        """Readers that wait for a poll that begins after they asked."""

    async def start(self) -> None:
        """Poll once, then keep polling. Raises what the first poll raises."""
        await self._poll()
        self._task = self._supervisor.keep("feed", self._follow)

    async def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            for one in self._catching_up:
                one.cancel()

    def committed(self, commits: Sequence[FileCommit], answers: Sequence[FileAnswer]) -> None:
        """This agent committed something: consumers get it at once, without a poll if the answers tell all and it
        follows the index's own end. If there are no consumers, the next turn is early enough, or the next fetch of
        these partitions: a poll for each commit was an eighth of a producing agent's time in Python.
        """
        self._acknowledged.note(commits, answers)
        self._own.note(commits, answers)
        extents = appended_extents(commits, answers) if self._is_followed else None
        if extents is None:
            self._poll_soon()
            return
        heard, is_known = self._index.take_own(extents)
        self._waiters.notify(heard)
        if is_known:
            self._end_quiet()
        else:
            self._poke()

    def start_over(self) -> None:
        """Forget what the feed told: it is of another life of the metastore. So may be a page that is under way, which
        is the first one for the index: nothing of it is shown."""
        self._index.on_forgotten(self.known_extents())
        self._acknowledged.forget()
        self._own.forget()
        self._waiters.notify(self._index.forget_all())
        self._poke()

    @property
    def own_batches(self) -> int:
        """Number of batches of this agent that are kept for the list of what was lost."""
        return self._own.held_batches

    def known_extents(self) -> list[Extent]:
        """All extents that this agent knows to be committed, by the feed or by its own commits."""
        extents = self._index.extents()
        return extents + self._own.extents(extents)

    def changed(self) -> None:
        """This agent changed something that only the feed tells: consumers at the end get it at once."""
        self._acknowledged.note_all()
        self._poll_soon()

    def _poll_soon(self) -> None:
        if self._is_followed:
            self._poke()
        else:
            self._end_quiet()

    def _poke(self) -> None:
        """Poll without waiting for the next turn."""
        self._poked = True
        self._moved_at = self._clock.monotonic()
        if self._timer is not None:
            self._timer.cancel()

    async def catch_up(self) -> None:
        """Return once the index has what was committed before this call, or the metastore did not answer.

        All readers that ask while a poll is under way share the next one.
        """
        if self._task is None or self._task.done():
            return
        asked = asyncio.get_running_loop().create_future()
        self._catching_up.append(asked)
        self._poke()
        await asked

    def asked(self) -> None:
        """A consumer asked for records, wherever it is: nothing is quiet."""
        self._end_quiet()

    def _end_quiet(self) -> None:
        """The pause that is under way may be the long one of a quiet feed."""
        if self._is_quiet:
            self._poke()
        self._moved_at = self._clock.monotonic()

    def read(self, keys: Iterable[int]) -> None:
        """A fetch asks for these partitions."""
        if self._followed is not None:
            self._followed.read(keys)

    @contextmanager
    def following(self, keys: Iterable[int] = ()) -> Iterator[None]:
        """A consumer is at the end of these partitions while the block runs: other agents' commits arrive within
        `interval_ms`."""
        if self._followed is not None:
            self._followed.wait(keys)
        if not self._is_followed:
            self._poke()
        self._followers += 1
        try:
            yield
        finally:
            self._followers -= 1
            self._followed_at = self._clock.monotonic()

    def database_now_ms(self) -> int:
        """The database's clock, at most one poll's round trip late. UnavailableError before the first poll."""
        if self._wall_minus_monotonic is None:
            raise UnavailableError("database clock unknown: the feed was not polled yet")
        return int((self._wall_minus_monotonic + self._clock.monotonic()) * 1000)

    async def _follow(self) -> None:
        while True:
            try:
                behind = await self._poll()
                pause = 0.0 if behind else self._interval if self._is_followed else max(self._interval, self._idle())
            except HeadraceError as error:
                self._metrics.feed_polls.labels("failed").inc()
                log.warning("feed poll failed: error=%s", error)
                pause = max(RETRY_SECONDS, self._interval)
            except Exception:
                self._metrics.feed_polls.labels("failed").inc()
                log.exception("feed poll failed unexpectedly: index cleared")
                self._waiters.notify(self._index.forget_all())
                pause = max(RETRY_SECONDS, self._interval)
            await self._pause(pause)

    async def _poll(self) -> bool:
        """One page. True if the feed has more rows than the page."""
        self._poked = False
        asked, self._catching_up = self._catching_up, []
        is_behind = is_complete = False
        began_at = self._followed.begin_poll() if self._followed is not None else 0.0
        self._acknowledged.begin_poll()
        self._own.begin_poll()
        try:
            is_behind, is_complete = await self._apply_page(began_at)
        finally:
            self._acknowledged.end_poll(is_complete=is_complete)
            self._own.end_poll(self._clock.monotonic(), is_complete=is_complete)
            if is_behind:
                self._catching_up += asked
            else:
                for one in asked:
                    if not one.done():
                        one.set_result(None)
        return is_behind

    async def _apply_page(self, began_at: float) -> tuple[bool, bool]:
        """Return whether the feed has more rows than the page, and whether the index is at the feed's end."""
        index = self._index
        page = await self._metastore.poll_feed(index.heads)
        self._wall_minus_monotonic = page.wall_ms / 1000 - self._clock.monotonic()
        self._metrics.feed_polls.labels("ok").inc()
        if page.lost_shards:
            self._metrics.feed_lost_shards.inc(len(page.lost_shards))
            log.warning("feed rows no longer available: shards=%s", page.lost_shards)
        if page.rows or page.heads != self._heads or page.metadata_offset != self._metadata_offset:
            self._moved_at, self._metadata_offset = self._clock.monotonic(), page.metadata_offset
            self._heads = page.heads
        begins, shards = index.begins_with(page), index.shards
        if begins or any(page.heads[shard] < index.heads.get(shard, 0) for shard in page.lost_shards):
            index.on_forgotten(self._own.extents(index.extents()))
        self._waiters.notify(index.apply(page))
        if begins or page.lost_shards:
            self._waiters.notify_all(LOOK_AGAIN)
        self._on_metadata(page.metadata_offset)
        has_more = bool(page.rows) or index.shards > shards
        is_complete = index.is_at_end(page)
        if self._followed is not None:
            self._waiters.notify(self._followed.end_poll(page, began_at))
        return has_more and not is_complete, is_complete

    @property
    def _is_followed(self) -> bool:
        return self._followers > 0 or self._clock.monotonic() - self._followed_at < FOLLOWERS_LINGER_SECONDS

    def _idle(self) -> float:
        return QUIET_SECONDS if self._is_quiet else IDLE_SECONDS

    @property
    def _is_quiet(self) -> bool:
        return self._clock.monotonic() - self._moved_at >= QUIET_AFTER_SECONDS

    async def _pause(self, seconds: float) -> None:
        """Sleep, or wake up early after a poke. A poke during the previous poll counts, because that may have missed
        it.
        """
        if self._poked:
            return
        self._timer = timer = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((timer,))
        finally:
            self._timer = None
            timer.cancel()
