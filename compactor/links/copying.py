"""Job `link-copy`: copy a share of a link's partitions, from the leaders of the source to the bucket.

    rounds    one fetch per leader is under way; its answer becomes chunks (chunks.py), which fill the open file
    storing   a full or old file is stored and appended (storing.py) while the next ones are fetched
    looking   every few seconds: the source's leaders and topics, the rows of linked partitions, reports (looks.py)

Place: in the job loop of links (compactor/worker.py), planned by planning.py. A job runs for at most RUN_SECONDS and
ends early when the link's configs change; the planner asks for the next one.
Invariant: a partition's next offset is its own log end. What the metastore did not confirm is forgotten: after a
refusal or an unknown outcome the job ends, and the next one begins at the log ends.
Invariant of memory: at most one file is open and one is stored, with one answer per leader; no fetch is sent while
both are full.
A source that is away, or answers nonsense, costs a pause that doubles, a problem that people read, and one line a
minute in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.compactor.links.chunks import BATCH_BYTES_MAX, Chunk, make_chunk, tiles
from headrace.compactor.links.files import LinkFile
from headrace.compactor.links.metrics import LinkMetrics
from headrace.compactor.links.partition_copy import OWN_PRODUCER, PartitionCopy
from headrace.compactor.links.source import NO_LEADER, FetchAnswer, Fetched, Source
from headrace.compactor.links.storing import AppendedFile, LinkStore
from headrace.metastore.api.links import LinkedOutcome
from headrace.storage.clock import Clock
from headrace.storage.errors import (
    CorruptError,
    HeadraceError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
)

logger = logging.getLogger(__name__)

ANSWER_BYTES = 16 * 1024 * 1024
"""What the answers that are under way have together, but for larger batches."""
PARTITIONS_PER_FETCH = 500
AT_ONCE_BYTES = 64 * 1024
"""Bytes that become a chunk in less time than a thread takes to begin."""
FILE_SECONDS = 0.5
"""A file is stored this long after its first chunk, however small it is."""
SOURCE_PAUSE_SECONDS, SOURCE_PAUSE_SECONDS_MAX = 0.5, 30.0
LOG_SECONDS = 60.0
LOOK_AGAIN = frozenset(
    (
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.replica_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.kafka_storage_error,
        ErrorCode.offset_not_available,
    )
)
"""Another broker leads, or the topic is another one: the next look at the source says so."""


class LinkPace:
    """How fast a share of a link reads. `bytes_per_s` 0: no limit."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def may_go(self, now: float) -> bool:
        """Return whether more may be read."""
        return now >= self._free_at

    def took(self, size_bytes: int, now: float) -> None:
        """Count what was read."""
        if self._bytes_per_s:
            self._free_at = max(self._free_at, now) + size_bytes / self._bytes_per_s


@dataclass
class LeaderState:
    """One broker of the source: what it is asked now, and when it may be asked again."""

    fetching: asyncio.Task[FetchAnswer] | None = None
    asked: tuple[PartitionCopy, ...] = ()
    ask_at: float = 0.0
    pause: float = SOURCE_PAUSE_SECONDS


class Copying:
    """The rounds of one job. `copies` by partition key; others change it between steps (looks.py)."""

    def __init__(
        self, link: str, source: Source, store: LinkStore, clock: Clock, pace: LinkPace, metrics: LinkMetrics
    ) -> None:
        self.link, self.copies = link, dict[int, PartitionCopy]()
        self.lost = set[int]()
        """Partitions of which a chunk was refused, until looks.py has found out why."""
        self.is_over = False
        """Whether the job must end: what is in memory is not to be relied on."""
        self.has_failed = False
        """Whether metastore or bucket is the reason: the next job should not begin at once."""
        self.needs_look = True
        """Whether leaders have to be looked up again."""
        self.source, self.clock = source, clock
        self._store, self._pace, self._metrics = store, pace, metrics
        self._leaders: defaultdict[int, LeaderState] = defaultdict(LeaderState)
        self._file, self._opened_at = LinkFile(), 0.0
        self._storing: asyncio.Task[AppendedFile] | None = None
        self._logged_at = -LOG_SECONDS

    async def step(self, seconds: float) -> None:
        """Do what can be done now, and wait for what comes first, for at most `seconds`. FencedError if the lease is
        lost.
        """
        self._fetch_more()
        if self._is_due() and self._storing is None:
            file, self._file = self._file, LinkFile()
            self._storing = asyncio.create_task(self._store.append(file))
        await self._wait(seconds)
        if self._storing is not None and self._storing.done():
            storing, self._storing = self._storing, None
            self._note_stored(storing)
        for leader in [each for each, state in self._leaders.items() if state.fetching and state.fetching.done()]:
            await self._take(leader)

    async def finish(self) -> None:
        """Store what is in memory, and forget what is under way."""
        self._cancel_fetches()
        if not self.is_over:
            if self._storing is not None:
                storing, self._storing = self._storing, None
                await asyncio.wait([storing])
                self._note_stored(storing)
            if self._file and not self.is_over and not self.lost:
                file, self._file = self._file, LinkFile()
                storing = asyncio.create_task(self._store.append(file))
                await asyncio.wait([storing])
                self._note_stored(storing)

    async def abandon(self) -> None:
        """End everything that is under way."""
        self._cancel_fetches()
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)

    def fail_source(self, error: HeadraceError, copies: tuple[PartitionCopy, ...]) -> None:
        """The source did not answer, or not well: these partitions wait."""
        now = self.clock.monotonic()
        self._metrics.source_failures.labels(self.link).inc()
        for copy in copies:
            copy.fail(f"the source: {error}", now)
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            logger.warning("link cannot read its source: link=%s error=%s", self.link, error)

    # -- fetching

    def _fetch_more(self) -> None:
        """Send a fetch to each leader that may be asked."""
        now = self.clock.monotonic()
        if (self._file.is_full and self._storing is not None) or not self._pace.may_go(now):
            return
        waiting = defaultdict[int, list[PartitionCopy]](list)
        for copy in self.copies.values():
            if copy.may_fetch(now):
                waiting[copy.leader].append(copy)
        for leader, copies in waiting.items():
            state = self._leaders[leader]
            if state.fetching is None and now >= state.ask_at:
                copies.sort(key=lambda copy: (not copy.is_behind, copy.fetched_at))
                state.asked = tuple(copies[:PARTITIONS_PER_FETCH])
                for copy in state.asked:
                    copy.fetched_at = now
                room = ANSWER_BYTES // len(waiting)
                each = room // len(state.asked)
                wanted = max(room, max(copy.bytes_max for copy in state.asked))
                positions = [copy.position(each) for copy in state.asked]
                state.fetching = asyncio.create_task(self.source.fetch(leader, positions, wanted))

    async def _take(self, leader: int) -> None:
        """Take what a leader answered."""
        state = self._leaders[leader]
        fetching, state.fetching = state.fetching, None
        asked, state.asked = state.asked, ()
        assert fetching is not None
        now = self.clock.monotonic()
        try:
            answer = fetching.result()
        except (HeadraceError, asyncio.CancelledError) as error:
            wrong = error if isinstance(error, HeadraceError) else CorruptError("cancelled")
            self.fail_source(wrong, asked)
            state.ask_at, state.pause = now + state.pause, min(2 * state.pause, SOURCE_PAUSE_SECONDS_MAX)
            self.needs_look = True
            return
        state.ask_at, state.pause = now + answer.throttle_s, SOURCE_PAUSE_SECONDS
        self._pace.took(sum(len(part.records) for part in answer.partitions), now)
        by_place = {copy.place: copy for copy in asked}
        for part in answer.partitions:
            copy = by_place.pop((part.topic, part.partition), None)
            if copy is not None and self.copies.get(copy.row.partition_key) is copy:
                await self._take_part(copy, part)

    async def _take_part(self, copy: PartitionCopy, part: Fetched) -> None:
        """Take a partition's part of an answer: the next chunk, or the reason why there is none."""
        now = self.clock.monotonic()
        try:
            if not self._is_readable(copy, part):
                return
            part.bounds.check()
            copy.bounds = part.bounds
            offset = max(copy.end, copy.bounds.start)
            make = partial(
                make_chunk,
                copy.end,
                copy.last_epoch,
                part.records,
                part.aborted,
                stable=part.bounds.stable,
                producers=copy.producers,
            )
            chunk = make() if len(part.records) <= AT_ONCE_BYTES else await asyncio.to_thread(make)
            if not chunk.batches and copy.end < copy.bounds.start == copy.bounds.stable:
                chunk = _only_gap(copy, offset)
        except (CorruptError, InvalidError) as error:
            copy.fail(str(error), now)
            return
        if chunk.bytes_wanted > copy.bytes_max:
            copy.bytes_max = min(chunk.bytes_wanted, BATCH_BYTES_MAX)
        if chunk.batches:
            self._opened_at = self._opened_at if self._file else now
            self._file.add(copy.row, chunk, copy.grow(chunk, now))
        elif copy.end >= part.bounds.end:
            copy.sound(now)
        if copy.stored_end >= part.bounds.end:
            copy.current_at = now

    def _is_readable(self, copy: PartitionCopy, part: Fetched) -> bool:
        """Return whether the part has batches, perhaps none. InvalidError says why it never will."""
        if part.diverging is not None:
            epoch, end = part.diverging
            raise InvalidError(
                f"the source was truncated: its log is another one from offset {end} on (epoch {epoch}), the copy ends"
                f" at {copy.end}"
            )
        if part.error is ErrorCode.none:
            return True
        if part.error is ErrorCode.offset_out_of_range:
            copy.needs_bounds = True
        elif part.error not in LOOK_AGAIN:
            raise InvalidError(f"the source says: {part.error.name}")
        copy.leader, self.needs_look = NO_LEADER, True
        return False

    # -- storing

    def _is_due(self) -> bool:
        """Return whether the open file is stored now."""
        return self._file.is_full or (bool(self._file) and self.clock.monotonic() - self._opened_at >= FILE_SECONDS)

    def _note_stored(self, storing: asyncio.Task[AppendedFile]) -> None:
        """Note what became of a file. The job is over if that is not sure."""
        self.is_over = True
        try:
            stored = storing.result()
        except (OutcomeUnknownError, RetryableError, NotFoundError) as error:
            logger.warning("link could not append a file, its job begins again: link=%s error=%s", self.link, error)
            self.has_failed = True
            return
        self.is_over = False
        self.lost.update(key for key, outcome in stored.refused.items() if outcome is LinkedOutcome.LOST)
        now = self.clock.monotonic()
        for key, outcome in stored.refused.items():
            if outcome is LinkedOutcome.OWN_PRODUCER and key in self.copies:
                self.is_over = True
                self.copies[key].fail(OWN_PRODUCER, now)
        for key, end in stored.ends.items():
            if copy := self.copies.get(key):
                copy.stored_end = end
                copy.lost += stored.lost.get(key, 0)
                if end >= copy.bounds.end:
                    copy.current_at = now
        self._metrics.copied(self.link, stored.copied_bytes, sum(stored.lost.values()))

    # -- waiting

    async def _wait(self, seconds: float) -> None:
        """Return when something is done, or after `seconds`."""
        waits: set[asyncio.Task[Any]] = {state.fetching for state in self._leaders.values() if state.fetching}
        if self._storing is not None:
            waits.add(self._storing)
        waits.add(tick := asyncio.create_task(_sleep(self.clock.sleep(seconds))))
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        tick.cancel()

    def _cancel_fetches(self) -> None:
        for state in self._leaders.values():
            if state.fetching is not None:
                state.fetching.cancel()
                state.fetching = None


async def _sleep(sleeping: Coroutine[Any, Any, None]) -> None:
    await sleeping


def _only_gap(copy: PartitionCopy, offset: int) -> Chunk:
    """The offsets up to the source's log start, if the source has nothing above it."""
    batches = tiles(copy.end, offset, max(copy.last_epoch, copy.leader_epoch))
    return Chunk(copy.end, offset, batches, copy.producers.copy())
