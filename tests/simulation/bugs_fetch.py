"""Deliberate bugs of the read path."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from headrace.agent.cluster.view import ClusterView
from headrace.agent.fetch.files.cache import ChunkCache
from headrace.agent.fetch.files.seek import Seeker
from headrace.agent.fetch.files.walk import Batches, BatchStart
from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.own_commits import AcknowledgedEnds, Marks
from headrace.agent.fetch.index.tail import Lookup, LookupStatus
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.service import FetchService
from headrace.agent.fetch.sessions import Exchange, Ref
from headrace.agent.produce.commit import Committer
from headrace.agent.produce.files import StoredFile
from headrace.metastore.api.read import ALL_BYTES, Extent, ExtentQuery, FeedRow, OffsetAnswer, OffsetKind, OffsetQuery
from headrace.protocol.fetch_codec import FetchPartitionReply
from headrace.storage.segment.file_range import RangeBytes
from tests.patch import Patch
from tests.simulation.bug import bug
from tests.simulation.problems import Kind


@bug("W5", Kind.STALE)
def list_offsets_from_the_index(patch: Patch) -> None:
    """LATEST is answered from an index that may lag."""

    def init(self: FetchService, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        lagging: Any = _Lagging(self._list_offsets._joined, self._feed._index)
        self._list_offsets._joined = lagging

    original = patch.replace(FetchService, "__init__", init)


class _Lagging:
    """A IndexApi for ListOffsets only."""

    def __init__(self, metastore: Any, index: TailIndex) -> None:
        self._metastore = metastore
        self._index = index

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        answers = await self._metastore.list_offsets(queries)
        for i, (key, timestamp) in enumerate(queries):
            tail = self._index._tails.get(key)
            if timestamp == OffsetKind.LATEST and tail is not None and tail.confirmed:
                answers[i] = answers[i]._replace(offset=tail.high_watermark)
        return list(answers)


@bug("W3", Kind.EARLY)
def high_watermark_from_uncommitted_data(patch: Patch) -> None:
    """An agent counts its own batches as readable when their commit is sent."""
    indexes: WeakKeyDictionary[ClusterView, TailIndex] = WeakKeyDictionary()

    def init(self: FetchService, context: Any, view: ClusterView, around: Any) -> None:
        original_init(self, context, view, around)
        indexes[view] = self._feed._index

    def send(self: Committer, file: Any, now: float) -> Any:
        for entry in file.stage.entries if isinstance(file.stage, StoredFile) else ():
            tail = indexes[self._view]._tails.get(entry.batch.partition_key)
            if tail is not None:
                tail.high_watermark += entry.batch.record_count
        return original_send(self, file, now)

    original_init = patch.replace(FetchService, "__init__", init)
    original_send = patch.replace(Committer, "_send", send)


@bug("W5", Kind.SKIPPED, Kind.UNSEEN)
def own_commits_pass_those_of_others(patch: Patch) -> None:
    """What this agent committed is taken although the feed has not brought another agent's records before it."""

    def take_own(self: TailIndex, extents: Sequence[Extent]) -> tuple[dict[int, int], bool]:
        for extent in extents:
            tail = self._tails.get(extent.partition_key)
            if tail is not None and extent.base_offset >= tail.high_watermark:
                tail.extents.append(extent)
                tail.ahead.append(extent)
                tail.high_watermark = extent.last_offset + 1
        return {extent.partition_key: extent.length for extent in extents}, True

    patch.replace(TailIndex, "take_own", take_own)


@bug("W5", Kind.UNSEEN, Kind.REWOUND)
def feed_row_is_skipped(patch: Patch) -> None:
    """Every third row of the feed passes unread, as if it had been applied."""
    numbers = itertools.count()

    def apply_row(self: TailIndex, row: FeedRow, heard: dict[int, int]) -> None:
        if next(numbers) % 3 == 0 and self.heads.get(row.shard) == row.seq - 1:
            self.heads[row.shard] = row.seq
        else:
            original(self, row, heard)

    original = patch.replace(TailIndex, "_apply_row", apply_row)


@bug("W5", Kind.SKIPPED)
def fetch_starts_one_batch_late(patch: Patch) -> None:
    """Who enters an extent midway begins behind the batch that holds the offset."""

    async def find_start(self: Seeker, extent: Any, offset: int, *, recent: bool) -> Any:
        found = await original(self, extent, offset, recent=recent)
        if isinstance(found, BatchStart):
            batch = await self.first_batch(extent, lambda batch: True, found, recent=recent)
            if batch is not None and batch.next.offset <= extent.last_offset:
                return batch.next
        return found

    original = patch.replace(Seeker, "find_start", find_start)


@bug("W4", Kind.SKIPPED, Kind.INCONSISTENT)
def base_offset_is_not_patched_in_mid_extent(patch: Patch) -> None:
    """All batches of an extent go out under the offset of the first one."""

    def add(self: Batches, *args: Any, **named: Any) -> Any:
        first = len(self.buffers)
        end = original(self, *args, **named)
        for i in range(first + 2, len(self.buffers), 2):
            self.buffers[i] = bytes(self.buffers[first][:8]) + bytes(self.buffers[i][8:])
        return end

    original = patch.replace(Batches, "add", add)


@bug("W5", Kind.CORRUPT)
def response_ends_inside_a_batch(patch: Patch) -> None:
    """The last byte of the last batch of an extent is left out."""

    def add(self: Batches, *args: Any, **named: Any) -> Any:
        before = len(self.buffers)
        end = original(self, *args, **named)
        if len(self.buffers) > before:
            self.buffers[-1] = self.buffers[-1][:-1]
        return end

    original = patch.replace(Batches, "add", add)


@bug("W5", Kind.UNSEEN)
def session_leaves_out_what_is_not_news(patch: Patch) -> None:
    """An incremental fetch sends a partition only when its high watermark moved, even if more is left to read."""

    def narrow(self: Exchange, replies: Iterable[tuple[Ref, FetchPartitionReply]]) -> Any:
        replies = list(replies)
        sent = dict(self._session.sent) if self._session and self._incremental else {}
        chosen = original(self, replies)
        return [(ref, reply) for ref, reply in chosen if sent.get(ref, (-1,))[0] != reply.high_watermark]

    original = patch.replace(Exchange, "narrow", narrow)


@bug("W5", Kind.INCONSISTENT, Kind.CORRUPT, Kind.UNSEEN)
def cache_returns_another_file(patch: Patch) -> None:
    """What is not cached is served from any other file that is."""

    def peek(self: ChunkCache, file_id: Any, start: int, end: int) -> RangeBytes | None:
        found: RangeBytes | None = original(self, file_id, start, end)
        for data in self._entries.values() if found is None else ():
            if end <= len(data):
                return RangeBytes(data[start:end], checked=True)
        return found

    original = patch.replace(ChunkCache, "peek", peek)


@bug("W5", Kind.REWOUND)
def out_of_range_is_said_by_the_index(patch: Patch) -> None:
    """A lagging agent refuses an offset that it has not learned of, without asking the primary."""

    async def locate(self: Locator, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[Lookup]:
        for key, offset, _ in queries:
            tail = self._index._tails.get(key)
            if tail is not None and tail.confirmed and offset > tail.high_watermark:
                return [Lookup(LookupStatus.OUT_OF_RANGE, tail.log_start_offset, tail.high_watermark)] * len(queries)
        answers: list[Lookup] = await original(self, queries, max_bytes)
        return answers

    original = patch.replace(Locator, "locate", locate)


@bug("W5", Kind.STALE)
def what_was_acknowledged_is_not_marked(patch: Patch) -> None:
    """A fetch shows the index as it is, although this agent has acknowledged more."""
    patch.replace(AcknowledgedEnds, "note", lambda self, commits, answers: None)


@bug("W5", Kind.STALE)
def a_poll_ends_the_marks_that_were_made_during_it(patch: Patch) -> None:
    """What was acknowledged after a poll was sent counts as heard when its answer comes."""

    def end_poll(self: AcknowledgedEnds, *, is_complete: bool) -> None:
        original(self, is_complete=is_complete)
        if is_complete:
            self._ends.clear()

    original = patch.replace(AcknowledgedEnds, "end_poll", end_poll)


@bug("W5", Kind.STALE)
def a_failed_poll_ends_the_marks(patch: Patch) -> None:
    """Marks are forgotten although the feed did not answer, or did not bring all."""
    patch.wrap(AcknowledgedEnds, "end_poll", lambda right: lambda self, *, is_complete: right(self, is_complete=True))


@bug("W5", Kind.STALE)
def a_fetch_takes_its_marks_after_its_look_up(patch: Patch) -> None:
    """A poll that ends while a fetch waits for the primary ends the marks of what its look-up lacks."""

    def marks(self: AcknowledgedEnds, queries: Sequence[ExtentQuery]) -> Marks:
        return Marks({}, more=False, life=self._life)

    def is_missing(self: AcknowledgedEnds, taken: Marks, query: ExtentQuery, lookup: Lookup) -> bool:
        now = right_marks(self, [query])
        return now is not None and bool(right_is_missing(self, now, query, lookup))

    def raised(self: AcknowledgedEnds, taken: Marks, query: ExtentQuery, lookup: Lookup) -> Any:
        now = right_marks(self, [query])
        return lookup if now is None else right_raised(self, now, query, lookup)

    right_marks = patch.replace(AcknowledgedEnds, "marks", marks)
    right_is_missing = patch.replace(AcknowledgedEnds, "is_missing", is_missing)
    right_raised = patch.replace(AcknowledgedEnds, "raised", raised)
