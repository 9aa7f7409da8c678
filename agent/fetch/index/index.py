"""The tail index: the newest extents that this agent knows from the commit feed.

Place: the first source of a fetch (locate.py); filled by feed.py, completed by the primary's answers.
Invariant: a partition's extents here have no gap in offsets and end where the feed is, or where this agent's commits
are. Uncertain entries are removed, and the primary is asked for a removed partition: the index may lag, but is never
wrong. The sources can be combined without a race because high watermark and log start only grow within one incarnation
of the metastore (before a log start moves back, a row of the feed drops the partition), and because a primary's answer
is ignored if something was removed after it was requested, or if its commit shard was not followed yet (`generation`).
A log start that this agent moved, or that the primary answered, counts as long as the history is the same and the
partition was not dropped (`before_move`), also if something else was removed meanwhile.
The index holds something only of commit shards that it follows, those in `heads`. It begins to follow one from the head
that the newest page had: an answer that is asked for afterwards is at least as new, so nothing is missed in between.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter

from headrace.agent.fetch.index.segment_cache import SegmentCache
from headrace.agent.fetch.index.tail import (
    DroppedPartitions,
    FileEnds,
    LogStartMark,
    Lookup,
    LookupStatus,
    Tail,
    is_seamless,
    up_to,
)
from headrace.metastore.api.read import NONE_OPEN, Extent, FeedKind, FeedPage, FeedRow, PartitionExtents
from headrace.metastore.keys import commit_shard

LOOK_AGAIN = 1 << 62
"""Marker instead of a number of new bytes: a waiting fetch must look up its partitions again."""

EXTENTS_MAX = 65_536
"""Extents over all partitions; about 20 MB. The oldest arrival is removed first."""

OnForgotten = Callable[[list[Extent]], None]
_base_offset = attrgetter("base_offset")
_last_offset = attrgetter("last_offset")


class TailIndex:
    """The tail of each partition's log: recent extents, high watermark, log start."""

    def __init__(self, shards: int, extents_max: int = EXTENTS_MAX, on_forgotten: OnForgotten = lambda _: None) -> None:
        """`on_forgotten` gets what is forgotten because the feed went back or is another life's: it may be lost."""
        self.heads: dict[int, int] = {}
        """Per followed commit shard the number of the last feed row that was applied: what the feed is polled with."""
        self.generation = 0
        """Counts removals, and beginnings of following. Read it before asking the primary, and pass it to `observe`."""
        self.wanted: Callable[[int], Collection[int]] | None = None
        """Which of so many commit shards are followed when the index begins with a page; None: all, always."""
        self.history_mark = 0
        """Counts the histories, within which log starts of partitions that are not dropped only grow."""
        self.on_forgotten = on_forgotten
        self.history = SegmentCache()
        """What the primary said of earlier extents."""
        self.shards = shards
        """The count of commit shards, as far as their growth was followed."""
        self._page_heads: dict[int, int] = {}
        """All shards' heads as of the newest page."""
        self._removed_at = 0
        """The generation of the newest removal."""
        self._begun_at: dict[int, int] = {}
        """Shard -> the generation from which on it is followed, unless it was from the process's first page on."""
        self._life: uuid.UUID | None = None
        """The incarnation of the newest first page, also while everything is forgotten."""
        self._heads_before: dict[int, int] | None = None
        """While the shards grow: how far the old ones have to be applied before rows of the new ones are."""
        self._extents_max = extents_max
        self._incarnation: uuid.UUID | None = None
        self._tails: dict[int, Tail] = {}
        self._arrivals: deque[Extent] = deque()
        """The cached extents, oldest first, and those that something else has removed since they arrived."""
        self._file_ends = FileEnds()
        self._dropped = DroppedPartitions()

    @property
    def held_extents(self) -> int:
        """Here and in the history, at most: those that swaps removed are counted until they are the oldest."""
        return len(self._arrivals) + self.history.held_extents

    def look(self, key: int, offset: int, max_bytes: int) -> Lookup | None:
        """Extents from `offset` on, about `max_bytes` of them; None if the primary must be asked."""
        tail = self._tails.get(key)
        if tail is None or not tail.confirmed:
            return None
        if offset == tail.high_watermark:
            return tail.found([], offset)
        extents = tail.extents
        if not extents or not max(extents[0].base_offset, tail.log_start_offset) <= offset <= extents[-1].last_offset:
            return None
        first = bisect_left(extents, offset, key=_last_offset)
        return tail.found(up_to(extents, first, max_bytes), offset)

    def look_back(self, key: int, offset: int, max_bytes: int) -> Lookup | None:
        """The same as `look`, before the tail: from what the primary said earlier."""
        tail = self._tails.get(key)
        if tail is None or not tail.confirmed or offset < tail.log_start_offset:
            return None
        extents = up_to(self.history.from_offset(key, offset), 0, max_bytes)
        if not is_seamless(extents, offset):
            return None  # also in a rebuilt log, which may have gaps: the primary knows
        if extents[-1].last_offset + 1 >= tail.high_watermark:
            return None  # the primary knows whether there is more
        cut = sum(extent.length for extent in extents) < max_bytes
        return Lookup(
            LookupStatus.FOUND,
            tail.log_start_offset,
            tail.high_watermark,
            extents,
            cut=cut,
            last_stable_offset=max(tail.last_stable_offset, extents[-1].last_offset + 1),  # only stable ones are kept
            aborted=[a for a in self.history.aborted(key) if a.last_offset >= offset],
        )

    def high_watermark(self, key: int) -> int:
        """The newest known high watermark; 0 if none is known."""
        tail = self._tails.get(key)
        return tail.high_watermark if tail else 0

    def log_start_offset(self, key: int) -> int:
        """The log start as far as known here; -1 if unknown."""
        tail = self._tails.get(key)
        return tail.log_start_offset if tail is not None and tail.confirmed else -1

    def live_end(self, file_id: uuid.UUID) -> int:
        """The end of the last live byte of this file that the feed mentioned; 0 if none."""
        return self._file_ends.end_of(file_id)

    def observe(self, answer: PartitionExtents, generation: int) -> bool:
        """Take over watermark and log start from the primary, unless something was removed since `generation`, or the
        partition's shard was not followed then. Returns whether it was.
        """
        key = answer.partition_key
        if not self._is_current(key, generation):
            return False
        if not answer.known:
            gone = self._tails.pop(key, None)
            if gone is not None and gone.log_start_offset:  # the feed may still bring what is before it
                self._move_log_start(self._tails.setdefault(key, Tail()), gone.log_start_offset)
            return True
        tail = self._tails.setdefault(key, Tail())
        tail.high_watermark = max(tail.high_watermark, answer.high_watermark)
        tail.confirmed = True
        tail.note_primary(answer.first_open_offset, answer.high_watermark)
        self._move_log_start(tail, answer.log_start_offset)
        return True

    def _is_current(self, key: int, generation: int) -> bool:
        """Return whether nothing that was asked for at `generation` can lack what the feed brought before it."""
        shard = commit_shard(key, self.shards)
        return shard in self.heads and max(self._removed_at, self._begun_at.get(shard, 0)) <= generation

    def before_move(self) -> LogStartMark:
        """Return the mark for `move_log_start`: read it before the primary is asked."""
        return LogStartMark(self.history_mark, self.generation)

    def move_log_start(self, mark: LogStartMark, key: int, log_start_offset: int) -> None:
        """Take over a log start that this agent moved, or the primary answered, unless another history has begun or the
        feed has dropped the partition.
        """
        is_of_now = mark.history == self.history_mark and not self._dropped.was_dropped(key, mark)
        if is_of_now and log_start_offset and commit_shard(key, self.shards) in self.heads:
            self._move_log_start(self._tails.setdefault(key, Tail()), log_start_offset)

    def apply(self, page: FeedPage) -> dict[int, int]:
        """Apply a page. Returns the news for waiting fetches: key -> new bytes, or LOOK_AGAIN."""
        if self.begins_with(page):
            return self._begin_again(page)
        heard: dict[int, int] = {}
        self._page_heads = page.heads
        for shard in page.lost_shards:
            if shard in self.heads:  # else it was dropped meanwhile
                self._forget_lost(shard, page.heads[shard], heard)
        for row in page.rows:
            self._apply_row(row, heard)
        for shard, head in page.heads.items():
            if head < self.heads.get(shard, head):  # the feed went back without saying so
                self._forget_lost(shard, head, heard)
        self._follow_growth(page)
        return heard

    def begins_with(self, page: FeedPage) -> bool:
        """Return whether the page is the first one of a history: the page does not have rows before its heads."""
        if page.incarnation_id != self._incarnation:
            return True
        if any(shard not in page.heads for shard in page.lost_shards):  # the feed is older than the growth
            return True
        return self.wanted is not None and len(page.heads) < self.shards  # the same; the others are not asked for

    def is_at_end(self, page: FeedPage) -> bool:
        """Return whether everything that the page's heads cover is applied, as far as it is followed."""
        has_grown = len(page.heads) > self.shards
        return not has_grown and all(head >= page.heads.get(shard, 0) for shard, head in self.heads.items())

    def follow(self, shards: Iterable[int]) -> None:
        """Follow these shards, too, from the newest page on: what the primary is asked for from now on is as new."""
        begun = [shard for shard in shards if shard not in self.heads and shard in self._page_heads]
        if begun:
            self.generation += 1
            for shard in begun:
                self.heads[shard] = self._page_heads[shard]
                self._begun_at[shard] = self.generation

    def drop(self, shards: Collection[int]) -> dict[int, int]:
        """Follow these shards no more: heads, tails and history go together. Returns as `apply` does."""
        heard: dict[int, int] = {}
        self._forget_shards(shards, heard)
        for shard in shards:
            self.heads.pop(shard, None)
            self._begun_at.pop(shard, None)
        return heard

    def _begin_again(self, page: FeedPage) -> dict[int, int]:
        """The page is the first one of another history: nothing that was known counts."""
        self.on_forgotten(self.extents())
        began_before = self._life is not None
        if self._incarnation is not None or page.incarnation_id != self._life:  # else it was only forgotten
            self.history_mark += 1
        heard = self.forget_all()
        self._incarnation = self._life = page.incarnation_id
        self.shards, self._page_heads = len(page.heads), page.heads
        followed = page.heads if self.wanted is None else self.wanted(self.shards)
        self.heads = {shard: page.heads[shard] for shard in followed}
        if began_before:
            self._begun_at = dict.fromkeys(self.heads, self.generation)
        return heard

    def _follow_growth(self, page: FeedPage) -> None:
        """Follow new shards from their first row on, once the old ones are applied as far as a page with the growth
        goes: all that was committed to a partition before the growth is there (decisions/0077). One doubling after
        another: they may be several growths. Only those with partitions of a shard that is followed.
        """
        count = self.shards
        if len(page.heads) <= count:
            return
        if self._heads_before is None:
            self._heads_before = {shard: page.heads[shard] for shard in self.heads}
        before = self._heads_before
        if all(head >= before.get(shard, 0) for shard, head in self.heads.items()):
            self.heads |= {shard + count: 0 for shard in self.heads}
            self._begun_at |= {shard + count: begun for shard, begun in self._begun_at.items()}
            self.shards, self._heads_before = 2 * count, None

    def take_own(self, extents: Sequence[Extent]) -> tuple[dict[int, int], bool]:
        """Return what this agent's commit appended, before the feed brings it. Returns what `apply` does, and whether
        all of it is known now.

        An extent is taken only if it follows the newest one here: then nothing that the feed has not brought yet is
        between them. Not for transactional batches, of which the feed says more.
        """
        heard: dict[int, int] = {}
        for extent in extents:
            key = extent.partition_key
            tail = self._tails.get(key)
            if tail is None or tail.end != extent.base_offset or tail.high_watermark != extent.base_offset:
                continue
            tail.ahead.append(extent)
            self._append(extent)
            heard[key] = heard.get(key, 0) + extent.length
            if tail.note_fed(None, extent.last_offset + 1):
                heard[key] = LOOK_AGAIN
        return heard, all(self.high_watermark(extent.partition_key) > extent.last_offset for extent in extents)

    def extents(self) -> list[Extent]:
        """All that are known."""
        return [extent for tail in self._tails.values() for extent in tail.extents]

    def forget_all(self) -> dict[int, int]:
        """Forget every partition and head: the next page is the first one. Returns as `apply` does."""
        heard = dict.fromkeys(self._tails, LOOK_AGAIN)
        self._count_removal()
        self._incarnation = self._heads_before = None
        self._tails.clear()
        self._arrivals.clear()
        self._file_ends.clear()
        self.heads, self._page_heads, self._begun_at = {}, {}, {}
        self.history.forget()
        return heard

    def _forget_lost(self, shard: int, head: int, heard: dict[int, int]) -> None:
        """Rows are missing; if the feed went back, as on a promoted standby before its life begins, extents may be."""
        if head < self.heads.get(shard, head):
            self.history_mark += 1
            self.on_forgotten([e for e in self.extents() if commit_shard(e.partition_key, self.shards) == shard])
        self._forget_shard(shard, head, heard)

    def _forget_shard(self, shard: int, head: int, heard: dict[int, int]) -> None:
        self._forget_shards((shard,), heard)
        self.heads[shard] = head
        self._begun_at[shard] = self.generation

    def _forget_shards(self, shards: Collection[int], heard: dict[int, int]) -> None:
        self._forget_keys([key for key in self._tails if commit_shard(key, self.shards) in shards], heard)
        self.history.forget([key for key in self.history.held_keys() if commit_shard(key, self.shards) in shards])

    def _forget_keys(self, keys: list[int], heard: dict[int, int]) -> None:
        self._count_removal()
        for key in keys:
            self._tails.pop(key, None)
            heard[key] = LOOK_AGAIN

    def _count_removal(self) -> None:
        self.generation += 1
        self._removed_at = self.generation

    def _apply_row(self, row: FeedRow, heard: dict[int, int]) -> None:
        head = self.heads.get(row.shard)
        if head is None or row.seq <= head:
            return
        if row.seq != head + 1:  # rows are missing: nothing of this shard is certain any more
            self._forget_shard(row.shard, row.seq, heard)
        self.heads[row.shard] = row.seq
        self.history.apply(row)
        if row.kind in (FeedKind.COMMIT, FeedKind.TRANSACTION):
            for extent in row.extents:
                if self._has_already(extent):
                    continue
                self._append(extent)
                heard[extent.partition_key] = heard.get(extent.partition_key, 0) + extent.length
            self._note_transactions(row, heard)
        elif row.kind is FeedKind.LOG_START:
            for move in row.log_starts:
                self._move_log_start(self._tails.setdefault(move.partition_key, Tail()), move.log_start_offset)
        elif row.kind is FeedKind.SWAP:
            for extent in row.extents:
                self._drop_through(extent.partition_key, extent.last_offset)
        else:
            self._forget_keys(row.deleted_keys, heard)
            self._dropped.note(row.deleted_keys, self.generation)

    def _note_transactions(self, row: FeedRow, heard: dict[int, int]) -> None:
        """Note which transactions are open after the row, in the partitions that it appended to."""
        for key, end in {extent.partition_key: extent.last_offset + 1 for extent in row.extents}.items():
            if self._tails[key].note_fed(row.first_open_offsets.get(key), end):
                heard[key] = LOOK_AGAIN
        for aborted in row.aborted:
            tail = self._tails[aborted.partition_key]
            first = tail.extents[0].base_offset
            tail.aborted = [*(a for a in tail.aborted if a.last_offset >= first), aborted]

    def _has_already(self, extent: Extent) -> bool:
        """Return whether an extent of the feed is here, because this agent committed it. If the feed has something
        else in the place of what this agent committed, that is lost: another history has begun.
        """
        tail = self._tails.get(extent.partition_key)
        if tail is None or not tail.ahead:
            return False
        if tail.feed_catches_up(extent):
            return True
        self.on_forgotten(list(tail.ahead))
        self._start_over(extent.partition_key)
        return False

    def _start_over(self, key: int) -> Tail:
        self._count_removal()
        self.history.forget([key])
        tail = self._tails[key] = Tail()
        return tail

    def _append(self, extent: Extent) -> None:
        key = extent.partition_key
        tail = self._tails.setdefault(key, Tail())
        if tail.end not in (None, extent.base_offset):
            # Commits of a shard have no gap and never go back: the entries belong to another incarnation.
            tail = self._start_over(key)
        tail.extents.append(extent)
        if extent.base_offset == 0 and commit_shard(key, self.shards) not in self._begun_at:
            # known from its first record on; of a shard that is followed later, its log start may have moved before
            tail.confirmed = True
            tail.note_primary(NONE_OPEN, 0)
        tail.high_watermark = max(tail.high_watermark, extent.last_offset + 1)
        self._arrivals.append(extent)
        while len(self._arrivals) > self._extents_max:
            self._evict(self._arrivals.popleft())
        self._file_ends.note(extent)

    def _evict(self, oldest: Extent) -> None:
        """Remove the extent that arrived first, unless it was removed already: newer ones of its partition stay."""
        tail = self._tails.get(oldest.partition_key)
        if tail is not None and tail.extents and tail.extents[0] is oldest:
            del tail.extents[0]

    def _drop_through(self, key: int, last_offset: int) -> None:
        """A swap replaced extents up to `last_offset`: readers of them must ask the primary."""
        tail = self._tails.get(key)
        if tail is not None:
            del tail.extents[: bisect_right(tail.extents, last_offset, key=_base_offset)]

    def _move_log_start(self, tail: Tail, log_start_offset: int) -> None:
        tail.log_start_offset = max(tail.log_start_offset, log_start_offset)
        tail.high_watermark = max(tail.high_watermark, log_start_offset)  # the feed has not brought these commits yet
        del tail.extents[: bisect_left(tail.extents, log_start_offset, key=_last_offset)]
