"""A store may alter the bytes that it returns: what is written is what is in the bucket, or nothing.

Fault model: tests/storage/altered_reads.py, at rates up to three of four reads, on every path that writes what it read:
merges of both levels, here and in a task of Spark; a pass of cleaning by key, by its tasks on Spark (the local worker
reads by the same code); rows of scans, which become tables and exports; joined objects of the bucket's records.
Property: no output has an unsound batch or another record, nothing counts as damaged, and the work is done in the end.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy
import pytest

from headrace.compactor.cleaning.key_map import ABSENT
from headrace.compactor.merge import MergeCounts, MergeLimits, merge
from headrace.compactor.plan import PartitionPlan, Plan, encode, outputs
from headrace.compactor.spark import cleaning_tasks, source
from headrace.compactor.spark.cleaning_tasks import PassPlan, RewriteTask, ScanTask
from headrace.metastore.api.read import Extent
from headrace.metastore.recorded_objects import read_entries, write_entries
from headrace.scan.columns import arrow_schema, record_batches
from headrace.scan.plan import ExtentSlice, PlannedPartition
from headrace.scan.read import SplitReader
from headrace.storage.errors import BadTransferError
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.records.codec import Record, decode_records, encode_batch
from headrace.storage.records.header import read_header
from headrace.storage.segment import rereading, verified
from headrace.storage.segment.reader import verify_segment, walk_batches
from headrace.storage.segment.rereading import ReadVerdict, VerifiedReads
from headrace.storage.segment.writer import SegmentWriter
from tests.planted import PlantedBugs, Trial
from tests.storage.altered_reads import AlteringStore, InstantClock

TOPIC = uuid.UUID(int=5)
ROUNDS_MAX = 200
Row = tuple[int, int, bytes | None, bytes | None]
"""Partition, offset, key, value."""


class Bucket:
    """Sound files, with what their extents have; reads of it are altered."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sound = MemoryStore()
        self.store = AlteringStore(self.sound, self.rng, rate=self.rng.choice((0.1, 0.4, 0.75)), prefix="segments/")
        self.extents: list[Extent] = []
        self.rows: list[Row] = []

    async def fill(self, files: int, partitions: int, level: int = 0) -> None:
        """Write files with an extent of each partition."""
        next_offsets = dict.fromkeys(range(partitions), 0)
        for _ in range(files):
            writer, file_id = SegmentWriter(), new_file_id(1_700_000_000_000, self.rng, level)
            for partition in range(partitions):
                start, base = writer.body_end, next_offsets[partition]
                for _ in range(self.rng.choice((1, 1, 3))):
                    self._batch(writer, partition, next_offsets)
                last = next_offsets[partition] - 1
                length = writer.body_end - start
                self.extents.append(Extent(partition, base, last, file_id, start, length, 3, 1_700_000_000_000))
            await self.sound.put(object_key(file_id), writer.finish())

    def _batch(self, writer: SegmentWriter, partition: int, next_offsets: dict[int, int]) -> None:
        first = next_offsets[partition]
        records = [
            Record(offset, 1_700_000_000_000, b"k%d" % self.rng.randrange(6), self.rng.randbytes(20))
            for offset in range(first, first + self.rng.choice((1, 4)))
        ]
        batch = encode_batch(records, base_offset=first)
        writer.add(TOPIC, partition, partition, memoryview(batch), read_header(batch))
        self.rows += [(partition, record.offset, record.key, record.value) for record in records]
        next_offsets[partition] = first + len(records)

    def plan(self, level: int, file_ids: Collection[uuid.UUID] = ()) -> Plan:
        """Return a merge of the extents in these files, or of all."""
        wanted = [extent for extent in self.extents if not file_ids or extent.file_id in file_ids]
        keys = sorted({extent.partition_key for extent in wanted})
        parts = (PartitionPlan(k, TOPIC, k, None, tuple(e for e in wanted if e.partition_key == k)) for k in keys)
        return Plan(level, 0, tuple(parts))

    def reads(self) -> VerifiedReads:
        return VerifiedReads(self.store, InstantClock(), self.rng)

    def take_over(self, runs: Any, file_id: uuid.UUID) -> None:
        """Swap in, as the metastore does."""
        for swap in (swap for run in runs for swap in run):
            replaced = {(entry.file_id, entry.last_offset) for entry in swap.inputs}
            kept = [
                e
                for e in self.extents
                if e.partition_key != swap.partition_key or (e.file_id, e.last_offset) not in replaced
            ]
            assert len(kept) == len(self.extents) - len(swap.inputs)
            self.extents = [*kept, Extent(*swap[:3], file_id, *swap[3:7])]
        self.extents.sort(key=lambda extent: (extent.partition_key, extent.base_offset))

    async def check(self) -> None:
        """Each live extent is sound, and all together have the expected records."""
        found: list[Row] = []
        for extent in self.extents:
            body = await self.sound.get(object_key(extent.file_id))
            verify_segment(body)
            data = memoryview(body)[extent.position : extent.position + extent.length]
            offset = extent.base_offset
            for position, header in walk_batches(data):
                for record in decode_records(data[position : position + header.size]):
                    place = offset + record.offset - header.base_offset
                    found.append((extent.partition_key, place, record.key, record.value))
                offset += header.last_offset_delta + 1
        assert sorted(found) == sorted(self.rows)


async def merges_of_a_worker(seed: int) -> None:
    """Merge to level 1, then to level 2, until nothing is left to merge."""
    bucket = Bucket(seed)
    await bucket.fill(files=4, partitions=3)
    limits = MergeLimits(file_bytes=1_500, extent_bytes=800, batch_bytes=400)
    for level in (1, 2):
        before = {extent.file_id for extent in bucket.extents}
        for _ in range(ROUNDS_MAX):
            plan = bucket.plan(level, before)
            if not plan.partitions:
                break
            counts = MergeCounts()
            async for file in merge(plan, bucket.reads(), limits, counts):
                verify_segment(file.body)
                file_id = new_file_id(1_700_000_000_000, bucket.rng, level)
                await bucket.sound.put(object_key(file_id), file.body)
                bucket.take_over(file.runs, file_id)
            assert not counts.damaged
        else:
            raise AssertionError("the work does not go on")
        await bucket.check()


async def merges_of_a_task(seed: int) -> None:
    """Do the same in a task of Spark: what it reports is sound, and what it left is live."""
    bucket = Bucket(seed)
    await bucket.fill(files=3, partitions=2)
    plan = bucket.plan(1)
    limits = MergeLimits(file_bytes=1_500)
    file_ids = tuple((new_file_id(1, bucket.rng, 1),) for _ in outputs(plan, limits.file_bytes, limits.extent_bytes))
    task = source.Task(1, 1, "", 1_000, limits.file_bytes, limits.max_message_bytes, 1e9, 1e9, 1)
    written = await source.MergeWriter(task)._merge([source.PlanPart(encode(plan).decode(), 0, file_ids)])
    assert not written.damaged
    for file, runs, _ in written.files:
        verify_segment(await bucket.sound.get(object_key(file.file_id)))
        bucket.take_over(runs, file.file_id)
    await bucket.check()


async def passes_on_spark(seed: int) -> None:
    """A pass by its two tasks: the last record of each key stays, and no other."""
    bucket = Bucket(seed)
    await bucket.fill(files=4, partitions=1, level=1)
    (part,) = bucket.plan(2).partitions
    end = part.extents[-1].last_offset + 1
    ids = (tuple((new_file_id(1, bucket.rng, 2),) for _ in range(9)),)
    plan = PassPlan((part,), 0, end, -1, 1, 1, 1, True, 1 << 20, 1 << 20, 1e9, 1e9, ids)
    scan = ScanTask(msgspec.json.encode(plan), b"secret")
    rows = await _in_the_end(lambda: asyncio.to_thread(lambda: list(scan.rows(0))))
    assert not any(why for batch in rows for why in batch.column("why").to_pylist())
    keyed = [
        row
        for batch in rows
        for row in zip(batch.column("digest").to_pylist(), batch.column("offset").to_pylist(), strict=True)
    ]
    newest: dict[bytes, int] = {}
    for digest, offset in keyed:
        newest[digest] = max(offset, newest.get(digest, ABSENT))
    superseded = sorted(offset for digest, offset in keyed if digest and offset < newest[digest])
    rewrite = RewriteTask(msgspec.json.encode(plan))
    report = await _in_the_end(lambda: rewrite.rewritten(0, numpy.array(superseded, numpy.int64)))
    assert report.why is None
    assert report.damaged is None
    for file, runs in report.files:
        bucket.take_over(runs, file.file_id)
    last = {key: offset for _, offset, key, _ in bucket.rows}
    bucket.rows = [row for row in bucket.rows if last[row[2]] == row[1]]
    await bucket.check()


def _slice(extent: Extent) -> ExtentSlice:
    first, last = extent.base_offset, extent.last_offset
    return ExtentSlice(extent.file_id, extent.position, extent.length, first, last, first, last + 1)


async def rows_of_a_scan(seed: int) -> None:
    """Return what becomes rows of a table, or of an export."""
    bucket = Bucket(seed)
    await bucket.fill(files=4, partitions=2)
    split = [
        PlannedPartition("t", key, tuple(_slice(extent) for extent in bucket.extents if extent.partition_key == key))
        for key in (0, 1)
    ]
    schema = arrow_schema(["partition", "offset", "key", "value"])

    def scanned() -> list[Row]:
        reader = SplitReader(bucket.reads(), pin_hint="")
        try:
            found = record_batches(reader.batches(split), schema)
            return [tuple(row.values()) for batch in found for row in batch.to_pylist()]  # type: ignore[misc]
        finally:
            reader.close()

    assert sorted(await _in_the_end(lambda: asyncio.to_thread(scanned))) == sorted(bucket.rows)


async def joined_records(seed: int) -> None:
    """Objects of the bucket's records: with the checksum in their names, and of the release before."""
    rng = random.Random(seed)
    sound = MemoryStore()
    store = AlteringStore(sound, rng, rate=rng.choice((0.1, 0.4, 0.75)))
    entries = [uuid.UUID(int=rng.getrandbits(128), version=4) for _ in range(5)]
    new = await write_entries(sound, "p/", 1, entries[0], entries)
    old = f"{new.key.rpartition('-')[0]}.json"
    await sound.put(old, await sound.get(new.key))
    for key in (new.key, old):
        assert await _in_the_end(lambda key=key: read_entries(store, key, uuid.UUID)) == entries  # type: ignore[misc]


async def _in_the_end(work: Callable[[], Any]) -> Any:
    """Repeat what fails by a bad transfer, as the job loop, Spark and the followers of tables do."""
    for _ in range(ROUNDS_MAX):
        try:
            return await work()
        except BadTransferError:
            continue
    raise AssertionError("the work does not go on")


PATHS = (merges_of_a_worker, merges_of_a_task, passes_on_spark, rows_of_a_scan, joined_records)


@pytest.fixture(autouse=True)
def stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of Spark open the bucket of the story under way, without pauses."""
    current: list[Bucket] = []
    made = Bucket.__init__

    def note(self: Bucket, seed: int) -> None:
        made(self, seed)
        current[:] = [self]

    @asynccontextmanager
    async def throttled(*_: object, **__: object) -> AsyncIterator[AlteringStore]:
        yield current[0].store

    monkeypatch.setattr(Bucket, "__init__", note)
    for module in (source, cleaning_tasks):
        monkeypatch.setattr(module, "throttled_store", throttled)
        monkeypatch.setattr(module, "SystemClock", InstantClock)


@pytest.mark.requirement("W10")
@pytest.mark.requirement("L5")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_what_is_written_is_sound(path: Callable[[int], Any]) -> None:
    for seed in range(15):
        asyncio.run(path(seed))


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_what_is_written_is_sound_from_many_seeds(path: Callable[[int], Any]) -> None:
    for seed in range(100, 500):
        asyncio.run(path(seed))


def _unchecked(batch: memoryview) -> int:
    return verified.read_header(batch).crc


async def _accept_the_second(self: VerifiedReads, key: str, byte_range: Any, check: Any, *more: Any) -> Any:
    """Accept what was read twice, also if it is wrong."""
    reads = 0

    def lenient(data: memoryview) -> Any:
        nonlocal reads
        reads += 1
        with pytest.MonkeyPatch.context() as patch:
            if reads > 1:
                patch.setattr(verified, "batch_crc", _unchecked)
            return check(data)

    return await _read(self, key, byte_range, lenient, *more)


def _hasty(digests: Any) -> ReadVerdict:
    return ReadVerdict.DAMAGED if len(digests) > 1 else ReadVerdict.AGAIN


_read = VerifiedReads.read
BUGS: dict[str, tuple[Any, str, Any]] = {
    "an unsound batch is copied": (verified, "batch_crc", _unchecked),
    "a second read is accepted": (VerifiedReads, "read", _accept_the_second),
    "reads that differ are damage": (rereading, "judge", _hasty),
}
PLANTED = PlantedBugs("altered reads", most=60)


@PLANTED.cases(BUGS)
def test_each_planted_bug_is_caught(bug: str, trial: Trial) -> None:
    trial.plant(*BUGS[bug])
    for seed in trial.seeds():
        with trial.shown_by(Exception):
            asyncio.run(merges_of_a_worker(seed))
