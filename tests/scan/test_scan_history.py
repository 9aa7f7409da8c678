"""Random histories with dropped duplicates, merges, log starts and deletions: a scan returns what a consumer reads.

Each planted bug of BUGS must be caught by the same histories.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pyarrow is needed: make setup")

from headrace.metastore.api.read import Extent
from headrace.scan import columns, plan, read
from headrace.scan.columns import arrow_schema, record_batches
from headrace.scan.options import COLUMNS, HEADERS
from headrace.scan.partitions import ScanPartition
from headrace.scan.plan import ExtentSlice, PlannedPartition, WantedOffsets, make_splits
from headrace.scan.read import SplitReader
from headrace.storage.segment.reader import walk_batches
from headrace.storage.segment.verified import SoundBatch
from tests.agent.fetch.fetch_world import World
from tests.generated_examples import FEW, by_seed_alone
from tests.planted import PlantedBugs, Trial
from tests.properties.test_compaction import Story, steps, types
from tests.seeds import examples
from tests.storage.altered_reads import reads_of

SCHEMA = arrow_schema((*COLUMNS, HEADERS))
SCHEMA_ROW = tuple[Any, ...]


class ScanStory(Story):
    """Scanned after every step, from and to random offsets, in splits of random size."""

    async def check(self, service: Any) -> None:
        model, rng = self.world.model, self.rng
        ranges, expected = {}, []
        for key in self._standing():
            partition = model.partitions[key]
            start, end = sorted(rng.randint(partition.log_start_offset, partition.high_watermark) for _ in range(2))
            if rng.random() < 0.5:
                start, end = partition.log_start_offset, partition.high_watermark
            place = ScanPartition(self.world.name(key), 0, key, uuid.UUID(int=key))
            ranges[place] = WantedOffsets(start, end)
            expected += [
                (
                    place.topic, 0, record.offset, record.timestamp, int(by_broker), record.key, record.value,
                    list(record.headers) or None,
                )
                for by_broker, _, _, record in self.truth[key]
                if start <= record.offset < end
            ]  # fmt: skip
        planned = await plan.plan(model, ranges, fail_on_data_loss=True, committed=rng.random() < 0.5)
        tasks = make_splits(planned, rng.choice([200, 2_000, 1 << 26]), rng.choice([None, None, 1, 3, 20]))
        rows = [row for task in rng.sample(tasks, len(tasks)) for row in scan(self.world, task)]
        assert sorted(rows, key=lambda row: row[:3]) == expected


def scan(world: World, task: plan.Split) -> list[SCHEMA_ROW]:
    """A task's rows, as (topic, partition, offset, ms, timestamp type, key, value, headers)."""
    reader = SplitReader(reads_of(world.store), pin_hint="")
    try:
        rows = [
            (
                row["topic"], row["partition"], row["offset"], stamp.value // 1_000, row["timestampType"], row["key"],
                row["value"], row[HEADERS] and [(h["key"], h["value"]) for h in row[HEADERS]],
            )
            for batch in record_batches(reader.batches(task), SCHEMA)
            for row, stamp in zip(batch.to_pylist(), batch.column("timestamp"), strict=True)
        ]  # fmt: skip
    finally:
        reader.close()
    for (topic, partition, offset, *_), (next_topic, next_partition, next_offset, *_) in pairwise(
        sorted(rows, key=lambda row: row[:2])
    ):
        assert (topic, partition) != (next_topic, next_partition) or offset < next_offset, "offsets rise in a task"
    return rows


@pytest.mark.requirement("X6.1")
@settings(max_examples=examples(60))
@given(steps, types, st.integers(0, 2**32))
def test_a_scan_returns_what_a_consumer_reads(history: list[Any], compression: list[str], seed: int) -> None:
    asyncio.run(ScanStory(compression, seed).tell(history))


_sound_batches, _cut, _finer, _fit = read.sound_batches, plan.cut, plan._finer, plan.fit


def _dead_too(extents: Sequence[Extent], wanted: WantedOffsets, aborted: Any = ()) -> tuple[list[ExtentSlice], int]:
    """Extents of one file as one range, with the dead batches between them."""
    found, offset = _cut(extents, wanted)
    joined: list[ExtentSlice] = []
    for each in found:
        if joined and joined[-1].file_id == each.file_id and joined[-1].position < each.position:
            last = joined.pop()
            each = last._replace(
                length=each.position + each.length - last.position, last_offset=each.last_offset, end=each.end
            )
        joined.append(each)
    return joined, offset


def _border_twice(partition: PlannedPartition, limit: int) -> PlannedPartition:
    finer = _finer(partition, limit)
    slices = [one._replace(start=max(one.start - 1, one.base_offset)) for one in finer.slices]
    return PlannedPartition(partition.topic, partition.partition, tuple(slices))


def _border_lost(partition: PlannedPartition, limit: int) -> PlannedPartition:
    finer = _finer(partition, limit)
    slices = [one._replace(start=min(one.start + (one.start != one.base_offset), one.end)) for one in finer.slices]
    return PlannedPartition(partition.topic, partition.partition, tuple(slices))


def _own_offsets(data: memoryview, extent: ExtentSlice, *, leader_epoch: int, start: int, end: int) -> list[SoundBatch]:
    """The offsets that producers wrote."""
    own = [header.base_offset for _, header in walk_batches(data)]
    return [
        SoundBatch(memoryview(bytearray(batch.data)), offset, leader_epoch)
        for batch, offset in zip(_sound_batches(data, extent, leader_epoch=leader_epoch), own, strict=True)
        if batch.last_offset >= start and batch.offset < end
    ]


def _whole_batches(place: Any, batch: SoundBatch) -> Any:
    whole = place._replace(slice=place.slice._replace(start=0, end=1 << 62))
    return _open(whole, batch)


_open = columns._open
BUGS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "dead batches are read": (plan, "cut", _dead_too),
    "the border of two splits is read twice": (plan, "_finer", _border_twice),
    "the border of two splits is lost": (plan, "_finer", _border_lost),
    "offsets are those of the producer": (read, "sound_batches", _own_offsets),
    "a batch is returned whole": (columns, "_open", _whole_batches),
}


PLANTED = PlantedBugs("scans", most=500)


@PLANTED.cases(BUGS)
def test_each_planted_bug_is_caught(bug: str, trial: Trial) -> None:
    trial.plant(*BUGS[bug])

    @FEW
    @given(steps, types, st.integers(0, 2**32))
    def histories(history: list[Any], compression: list[str], world_seed: int) -> None:
        asyncio.run(ScanStory(compression, world_seed).tell(history))

    for number in trial.seeds():
        with trial.shown_by(Exception), by_seed_alone():
            seed(number)(histories)()
