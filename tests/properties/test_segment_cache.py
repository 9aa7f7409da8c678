"""The segment cache answers as find_extents does, also while extents are replaced; and planted bugs are found.

A run is a seeded sequence: commits, swaps, moves of the log start, deletions, questions to the primary, and answers and
feed rows that arrive later. Whenever the feed has arrived, every offset that the cache holds is
compared with the primary. test_segment_cache_postgres.py does so with the real one.
"""

from __future__ import annotations

import random
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.segment_cache import SegmentCache
from headrace.metastore.api.read import Extent, FeedKind, FeedPage, FeedRow, LogStartMove, PartitionExtents
from headrace.metastore.keys import commit_shard, partition_key
from headrace.storage.file_id import new_file_id
from tests.planted import PlantedBugs, Report, Trial

KEYS = [partition_key(4, index) for index in range(3)]
SHARDS = 2
LIFE = uuid.UUID(int=1)
STEPS = 250
SEEDS = range(40)
EPOCHS_MAX = 3
pytestmark = pytest.mark.requirement("R8")


class Primary:
    """Extents, log starts and feed rows as Postgres has them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.extents: dict[int, list[Extent]] = {key: [] for key in KEYS}
        self.log_starts = dict.fromkeys(KEYS, 0)
        self.heads = dict.fromkeys(range(SHARDS), 0)
        self.rows: deque[FeedRow] = deque()

    def find(self, key: int, offset: int, limit: int) -> PartitionExtents:
        if key not in self.extents:
            return PartitionExtents(key, False, -1, -1, [])
        found = [extent for extent in self.extents[key] if extent.last_offset >= max(offset, self.log_starts[key])]
        return PartitionExtents(key, True, self.log_starts[key], self.high_watermark(key), found[:limit])

    def high_watermark(self, key: int) -> int:
        return self.extents[key][-1].last_offset + 1 if self.extents[key] else self.log_starts[key]

    def commit(self, key: int) -> None:
        base = self.high_watermark(key)
        epoch = min(EPOCHS_MAX, base // 20)
        extent = self._extent(key, base, base + self.rng.randrange(3), epoch, level=0)
        self.extents[key].append(extent)
        self._row(key, FeedKind.COMMIT, extents=[extent])

    def swap(self, key: int) -> None:
        """One to four neighbours of one epoch become one extent of a merged file."""
        have = self.extents[key]
        if have:
            first = self.rng.randrange(len(have))
            run = [
                e for e in have[first : first + self.rng.randint(1, 4)] if e.leader_epoch == have[first].leader_epoch
            ]
            merged = self._extent(key, run[0].base_offset, run[-1].last_offset, run[0].leader_epoch, level=1)
            have[first : first + len(run)] = [merged]
            self._row(key, FeedKind.SWAP, extents=[merged])

    def move_log_start(self, key: int) -> None:
        start = self.log_starts[key] + self.rng.randrange(6)
        if start <= self.high_watermark(key):
            self.log_starts[key] = start
            kept = [extent for extent in self.extents[key] if extent.last_offset >= start]
            if kept or not self.extents[key]:
                self.extents[key] = kept
                self._row(key, FeedKind.LOG_START, log_starts=[LogStartMove(key, start)])

    def delete(self, key: int) -> None:
        del self.extents[key]
        self._row(key, FeedKind.TOPIC_DELETED, deleted_keys=[key])

    def change(self, key: int, step: float) -> None:
        """One of the changes; nothing once every partition is deleted."""
        if key in self.extents:
            changes = ((0.25, self.commit), (0.35, self.swap), (0.38, self.move_log_start), (1, self.delete))
            next(change for limit, change in changes if step < limit)(key)

    def _extent(self, key: int, base: int, last: int, epoch: int, *, level: int) -> Extent:
        file_id = new_file_id(1_700_000_000_000, self.rng, level)
        return Extent(key, base, last, file_id, self.rng.randrange(1_000), 100, epoch, 0)

    def _row(self, key: int, kind: FeedKind, **fields: Any) -> None:
        shard = commit_shard(key, SHARDS)
        self.heads[shard] += 1
        self.rows.append(FeedRow(shard, self.heads[shard], kind, **fields))


def page(*rows: FeedRow, heads: dict[int, int] | None = None, lost: tuple[int, ...] = ()) -> FeedPage:
    return FeedPage(LIFE, 0, heads or {row.shard: row.seq for row in rows}, list(rows), list(lost), 0)


def run(seed: int) -> int:
    """Return how many answers of the cache were compared. AssertionError if one is not the primary's."""
    rng = random.Random(seed)
    primary, index = Primary(rng), TailIndex(SHARDS)
    index.history = SegmentCache(extents_max=40)
    index.apply(page(heads={0: 0, 1: 0}))
    answers: deque[tuple[PartitionExtents, int, int]] = deque()
    compared = 0
    for _ in range(STEPS):
        key = rng.choice(list(primary.extents) or KEYS)
        step = rng.random()
        if step < 0.382:
            primary.change(key, step)
        elif step < 0.55:
            offset = rng.randrange(60)
            answer = primary.find(key, offset, rng.randint(1, 8))
            answers.append((answer, index.generation, index.history.changes))
        elif step < 0.7 and answers:
            answer, generation, changes = answers.popleft()
            index.observe(answer, generation)
            if generation == index.generation:
                index.history.keep(answer.partition_key, answer.extents, changes)
        elif step < 0.705:
            shard = rng.randrange(SHARDS)
            primary.rows = deque(row for row in primary.rows if row.shard != shard)
            index.apply(page(heads={shard: primary.heads[shard]}, lost=(shard,)))
        else:
            for _ in range(rng.choice((1, len(primary.rows)))):
                if primary.rows:
                    index.apply(page(primary.rows.popleft()))
        assert sum(map(len, index.history._runs.values())) == index.history._held <= 40
        if not primary.rows:
            compared += compare(primary, index)
    return compared


def run_all() -> int:
    return sum(run(seed) for seed in SEEDS)


def compare(primary: Primary, index: TailIndex) -> int:
    compared = 0
    for key in KEYS:
        held = (
            index.history.from_offset(key, index.history._runs[key][0].base_offset)
            if key in index.history._runs
            else []
        )
        for offset in range(held[0].base_offset, held[-1].last_offset + 1) if held else ():
            truth = primary.find(key, offset, 1_000)
            assert truth.known
            if offset >= truth.log_start_offset:
                found = index.history.from_offset(key, offset)
                assert found == truth.extents[: len(found)]
                assert index.history.segment_at(key, offset) == truth.extents[0]
                compared += 1
    return compared


def test_what_the_cache_holds_is_what_the_primary_says() -> None:
    assert run_all() > 3_000


def swaps_are_ignored(right: Any) -> Any:
    return lambda self, row: None if row.kind is FeedKind.SWAP else right(self, row)


def log_starts_are_ignored(right: Any) -> Any:
    return lambda self, row: None if row.kind is FeedKind.LOG_START else right(self, row)


def deletions_are_ignored(right: Any) -> Any:
    return lambda self, row: None if row.kind is FeedKind.TOPIC_DELETED else right(self, row)


def old_answers_are_kept(right: Any) -> Any:
    return lambda self, key, extents, changes: right(self, key, extents, self.changes)


def a_swap_removes_only_its_first_extent(right: Any) -> Any:
    return lambda self, key, base, last: right(self, key, base, base)


def lost_rows_leave_the_cache(right: Any) -> Any:
    return lambda self, keys=None: None


def answers_are_joined_across_a_gap(right: Any) -> Any:
    def joined(self: SegmentCache, key: int, extents: list[Extent], changes: int) -> None:
        run = self._runs.get(key, [])
        if changes == self.changes and extents and run and run[-1].last_offset + 1 < extents[0].base_offset:
            self._put(key, [*run, *extents])
        else:
            right(self, key, extents, changes)

    return joined


BUGS: list[tuple[Callable[[Any], Any], str]] = [
    (swaps_are_ignored, "apply"),
    (deletions_are_ignored, "apply"),
    (old_answers_are_kept, "keep"),
    (a_swap_removes_only_its_first_extent, "_drop_range"),
    (lost_rows_leave_the_cache, "forget"),
    (answers_are_joined_across_a_gap, "keep"),
]


PLANTED = PlantedBugs("segment cache")


@PLANTED.cases(BUGS, lambda bug: bug[0].__name__)
def test_a_planted_bug_is_found(
    bug: tuple[Callable[[Any], Any], str], trial: Trial, record_property: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, method = bug
    monkeypatch.setattr(SegmentCache, method, wrong(getattr(SegmentCache, method)))
    for seed in trial.seeds(record_property):
        try:
            run(seed)
        except AssertionError:
            trial.saw(True)
