"""A model of what Postgres says of some partitions: extents, markers, aborted transactions, log starts, the feed.

Place: the primary in test_segment_cache.py. It also knows what each extent holds, so that a reader's records can be
compared with what was committed.
As in Postgres: a swap covers the same offsets as what it replaces; merges never cross a marker; cleaning ends below the
last stable offset, drops aborted batches, and writes committed ones as batches of no transaction; a marker goes in the
same step as its aborted transaction, when no batch needs it. delete.retention.ms is 0, and all of it may happen before
a reader hears of it.
"""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.agent.fetch.index.tail import up_to
from headrace.metastore.api.read import (
    ALL_BYTES,
    NONE_OPEN,
    AbortedRange,
    Extent,
    FeedKind,
    FeedPage,
    FeedRow,
    LogStartMove,
    PartitionExtents,
)
from headrace.metastore.keys import commit_shard
from headrace.metastore.transaction_markers import MARKER_BYTES, Marker, marker_file_id, marker_of
from headrace.storage.file_id import new_file_id

LIFE = uuid.UUID(int=1)
EPOCHS_MAX = 3
WRITERS = (None, 7, 7, 8)
"""The producer of the next batch; None for one in no transaction."""
ROWS_MAX = 4
"""Rows of a page that does not have all."""


class Batch(NamedTuple):
    """One batch in a file; `producer_id` is None if it is in no transaction."""

    base_offset: int
    last_offset: int
    producer_id: int | None


class PrimaryOfLogs:
    """What is committed, as of now."""

    def __init__(self, rng: random.Random, keys: list[int], shards: int) -> None:
        self.rng, self.shards = rng, shards
        self.extents: dict[int, list[Extent]] = {}
        """Of the partitions that are there; the others below are kept of the deleted ones, too."""
        self.log_starts: dict[int, int] = {}
        self.open: dict[int, dict[int, int]] = {}
        """Key -> producer id -> the first offset of its open transaction."""
        self.aborted: dict[int, list[AbortedRange]] = {}
        self.committed: dict[int, dict[int, int]] = {}
        """Key -> base -> last offset of each batch that was committed, or is in no transaction."""
        self.batches: dict[uuid.UUID, list[Batch]] = {}
        """What each file holds."""
        self.feed: dict[int, list[FeedRow]] = {shard: [] for shard in range(shards)}
        for key in keys:
            self.create(key)

    def find(self, key: int, offset: int, max_bytes: int = ALL_BYTES) -> PartitionExtents:
        """Return what find_extents does."""
        if key not in self.extents:
            return PartitionExtents(key, False, -1, -1, [])
        start = max(offset, self.log_starts[key])
        found = up_to([extent for extent in self.extents[key] if extent.last_offset >= start], 0, max_bytes)
        last = found[-1].last_offset if found else -1
        aborted = [a for a in self.aborted[key] if a.last_offset >= start and a.first_offset <= last]
        return PartitionExtents(
            key, True, self.log_starts[key], self.high_watermark(key), found, self._first_open(key), aborted
        )

    def page(self, heads: Mapping[int, int], *, whole: bool, lost: int | None = None) -> FeedPage:
        """Return what a poll with these heads gets now; `lost`: the rows of this shard are gone."""
        rows = [row for shard, head in heads.items() if shard != lost for row in self.feed[shard][head:]]
        now = {shard: len(rows) for shard, rows in self.feed.items()}
        return FeedPage(LIFE, 0, now, rows if whole else rows[:ROWS_MAX], [] if lost is None else [lost], 0)

    def high_watermark(self, key: int) -> int:
        return self.extents[key][-1].last_offset + 1 if self.extents[key] else self.log_starts[key]

    def append(self, key: int) -> None:
        """A batch of a transaction, which it may begin, or of none."""
        producer_id = self.rng.choice(WRITERS)
        base = self.high_watermark(key)
        batch = Batch(base, base + self.rng.randrange(3), producer_id)
        extent = self._file(key, [batch], base, batch.last_offset, min(EPOCHS_MAX, base // 40), level=0)
        self.extents[key].append(extent)
        if producer_id is None:
            self.committed[key][base] = batch.last_offset
            self._row(key, FeedKind.COMMIT, extents=[extent])
        else:
            self.open[key].setdefault(producer_id, base)
            opened = {key: self._first_open(key)}
            self._row(key, FeedKind.TRANSACTION, extents=[extent], first_open_offsets=opened)

    def end(self, key: int) -> None:
        """An open transaction is committed or aborted."""
        if not self.open[key]:
            return
        producer_id = self.rng.choice(sorted(self.open[key]))
        first, at, commits = self.open[key].pop(producer_id), self.high_watermark(key), self.rng.random() < 0.5
        marker = Extent(
            key, at, at, marker_file_id(Marker(producer_id, 0, commits)), 0, MARKER_BYTES, min(EPOCHS_MAX, at // 40), 0
        )
        if commits:
            held = [batch for extent in self.extents[key] for batch in self.batches.get(extent.source, ())]
            mine = [batch for batch in held if batch.producer_id == producer_id and batch.base_offset >= first]
            self.committed[key] |= {batch.base_offset: batch.last_offset for batch in mine}
        aborted = [] if commits else [AbortedRange(key, producer_id, first, at)]
        self.extents[key].append(marker)
        self.aborted[key] += aborted
        opened = {key: self._first_open(key)}
        self._row(key, FeedKind.TRANSACTION, extents=[marker], first_open_offsets=opened, aborted=aborted)

    def merge(self, key: int) -> None:
        """One to four neighbours of one epoch become one extent of a merged file."""
        run = self._some(key, 4)
        if run and not any(map(_is_marker, run)):
            self._swap(key, run, [batch for extent in run for batch in self.batches[extent.source]])

    def clean(self, key: int) -> None:
        """The same, below the last stable offset, without aborted batches, and without markers that none needs."""
        run = [
            extent
            for extent in self._some(key, self.rng.choice((1, 1, 2, 6)))
            if extent.last_offset < self.find(key, 0).last_stable_offset
        ]
        if any(_is_marker(extent) and self._is_needed(key, extent) for extent in run):
            return
        ends = {extent.last_offset for extent in run if _is_marker(extent)}
        self.aborted[key] = [a for a in self.aborted[key] if a.last_offset not in ends]
        if run:
            held = [batch for extent in run for batch in self.batches.get(extent.source, ())]
            kept = [batch._replace(producer_id=None) for batch in held if batch.base_offset in self.committed[key]]
            self._swap(key, run, kept)

    def move_log_start(self, key: int) -> None:
        """DeleteRecords, or retention."""
        start = self.log_starts[key] + self.rng.randrange(4)
        if start <= self.high_watermark(key):
            kept = [extent for extent in self.extents[key] if extent.last_offset >= start]
            if kept or not self.extents[key]:
                self.log_starts[key], self.extents[key] = start, kept
                self._row(key, FeedKind.LOG_START, log_starts=[LogStartMove(key, start)])

    def create(self, key: int) -> None:
        self.extents[key], self.log_starts[key], self.open[key] = [], 0, {}
        self.aborted[key], self.committed[key] = [], {}

    def delete(self, key: int) -> None:
        del self.extents[key]
        self._row(key, FeedKind.TOPIC_DELETED, deleted_keys=[key])

    def grow(self) -> None:
        """Double the commit shards."""
        self.feed |= {shard + self.shards: [] for shard in range(self.shards)}
        self.shards *= 2

    def _some(self, key: int, most: int) -> list[Extent]:
        """Some neighbours of one epoch, if there are extents."""
        have = self.extents[key]
        first = self.rng.randrange(len(have)) if have else 0
        run = have[first : first + self.rng.randint(1, most)]
        return [extent for extent in run if extent.leader_epoch == run[0].leader_epoch]

    def _swap(self, key: int, run: list[Extent], batches: list[Batch]) -> None:
        have, last = self.extents[key], run[-1].last_offset
        new = self._file(key, batches, run[0].base_offset, last, run[0].leader_epoch, level=1)
        first = have.index(run[0])
        have[first : first + len(run)] = [new]
        self._row(key, FeedKind.SWAP, extents=[new])

    def _is_needed(self, key: int, marker: Extent) -> bool:
        """Return whether a batch of the transaction is still one of a transaction."""
        held = [batch for extent in self.extents[key] for batch in self.batches.get(extent.source, ())]
        mine = marker_of(marker.source)
        return any(b.producer_id == mine.producer_id and b.base_offset < marker.base_offset for b in held if mine)

    def _first_open(self, key: int) -> int:
        return min(self.open[key].values(), default=NONE_OPEN)

    def _file(self, key: int, batches: list[Batch], base: int, last: int, epoch: int, *, level: int) -> Extent:
        file_id = new_file_id(1_700_000_000_000, self.rng, level)
        self.batches[file_id] = batches
        return Extent(key, base, last, file_id, self.rng.randrange(1_000), 100, epoch, 0)

    def _row(self, key: int, kind: FeedKind, **fields: Any) -> None:
        shard = commit_shard(key, self.shards)
        self.feed[shard].append(FeedRow(shard, len(self.feed[shard]) + 1, kind, **fields))


def read_committed(
    batches: Mapping[uuid.UUID, list[Batch]], extents: list[Extent], aborted: list[AbortedRange], offset: int
) -> list[int]:
    """Return the base offsets of the batches that Kafka's consumer at `offset` shows of such an answer (KIP-98).

    Source: CompletedFetch.nextFetchedRecord, consumeAbortedTransactionsUpTo.
    """
    waiting = sorted((a.first_offset, a.producer_id) for a in aborted)
    skipped: dict[int, bool] = defaultdict(bool)
    shown: list[int] = []
    for extent in extents:
        marker = marker_of(extent.source)
        held = batches[extent.source] if marker is None else [Batch(extent.base_offset, extent.last_offset, None)]
        for batch in held:
            if batch.last_offset < offset:
                continue
            while waiting and waiting[0][0] <= batch.last_offset:
                skipped[waiting.pop(0)[1]] = True
            if marker is not None:
                skipped[marker.producer_id] = False
            elif batch.producer_id is None or not skipped[batch.producer_id]:
                shown.append(batch.base_offset)
    return shown


def _is_marker(extent: Extent) -> bool:
    return marker_of(extent.source) is not None
