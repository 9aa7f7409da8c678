"""A compacted log in memory: appends, transactions, a clock, and passes by the worker's job and by Spark's tasks.

Place: test_log_end.py tells histories of it. The passes are the real ones (compactor/cleaning/job.py,
compactor/spark/cleaning_tasks.py); their metastore is the reference model. Spark's part, "a later record has this key",
is a dictionary here.
Invariant checked by each pass: both leave the same records, markers and horizons.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import numpy
from prometheus_client import CollectorRegistry

from headrace.compactor.cleaning.job import Cleaner, CleaningTerms, end_of_pass
from headrace.compactor.cleaning.metrics import CleaningMetrics
from headrace.compactor.cleaning.policy import CleaningJob, CleaningRule, CleaningTask, encode_cleaning, task
from headrace.compactor.merge import MergeLimits
from headrace.compactor.plan import partition_plan
from headrace.compactor.spark.cleaning_tasks import PassPlan, RewriteTask, ScanTask
from headrace.compactor.spark.parts import split_extents
from headrace.jobs.lease import Lease
from headrace.metastore.api.cleaning import CleanablePartition, CleaningState
from headrace.metastore.api.compaction import NewFile, Swap, SwapInput, SwapOutcome
from headrace.metastore.api.jobs import Job, JobToken
from headrace.metastore.api.read import AbortedRange, Extent, is_in_file
from headrace.metastore.transaction_markers import MARKER_BYTES, Marker, marker_file_id, marker_of
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange
from headrace.storage.records.codec import Record, decode_records, encode_batch
from headrace.storage.records.header import TRANSACTIONAL_BIT
from headrace.storage.segment.verified import sound_batches
from tests.compactor.model_api import ModelCleaningApi
from tests.manual_clock import ManualClock
from tests.model.metastore_model import ModelMetastore
from tests.nouns import nouns
from tests.storage.batches import forge

RULE = CleaningRule(dirty_ratio=0.0, delete_retention_ms=1_000)
KeyValue = tuple[str | None, str | None]


class Entry(NamedTuple):
    """A record or a marker that is there. `horizon_ms`: of a delete marker's batch."""

    offset: int
    key: str | None
    value: str | None
    is_marker: bool = False
    horizon_ms: int | None = None


class CleanedLog:
    """One partition."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        model = ModelMetastore(self.clock)
        (self.key,) = model.create_topic(1, 1)
        self.partition = model.partitions[self.key]
        self.api = _Api(model, self)
        self.committed: list[Entry] = []
        self.passes = 0

    @property
    def end(self) -> int:
        """The high watermark."""
        return self.partition.high_watermark

    async def append(self, records: Sequence[KeyValue], producer_id: int | None = None) -> None:
        """One batch in one file of level 1, in a transaction if it has a producer."""
        now_ms, base = self.clock.wall_ms(), self.end
        made = [Record(n, now_ms, _bytes(key), _bytes(value)) for n, (key, value) in enumerate(records)]
        data = encode_batch(made, base_offset=0)
        if producer_id is not None:
            data = forge(data, attributes=TRANSACTIONAL_BIT, producer_id=producer_id)
        file_id = new_file_id(now_ms, self.rng, 1)
        await self.store.put(object_key(file_id), data)
        self._add(Extent(self.key, base, base + len(made) - 1, file_id, 0, len(data), 0, now_ms))

    async def transaction(self, records: Sequence[KeyValue], *, commits: bool) -> None:
        """A transaction of one batch, and its marker."""
        producer_id, first = self.rng.randrange(1, 4), self.end
        await self.append(records, producer_id)
        if commits:
            self._note(first, records)
        else:
            self.api.aborted.append(AbortedRange(self.key, producer_id, first, self.end))
        source = marker_file_id(Marker(producer_id, 0, commits))
        self._add(Extent(self.key, self.end, self.end, source, self.clock.wall_ms(), MARKER_BYTES, 0, -1))

    async def plain(self, records: Sequence[KeyValue]) -> None:
        """Records of no transaction."""
        first = self.end
        await self.append(records)
        self._note(first, records)

    def roll(self) -> None:
        """End the active part."""
        self.api.roll_offsets[self.key] = self.end

    async def clean(self) -> bool:
        """Run the pass that is due; False if none is."""
        wanted = task(RULE, self.clock.wall_ms(), self.state())
        if wanted is None:
            return False
        _, (partition,) = await self.api.cleanable_extents([(self.key, wanted.end)])
        by_spark = await self.spark_pass(partition, wanted)
        job = Job(JobToken(1, 1), "clean", "", encode_cleaning(CleaningJob((wanted,))), 1, "")
        limits = MergeLimits(extent_bytes=self.rng.choice((1, 250, 1 << 20)), file_bytes=self.rng.choice((1, 1 << 20)))
        metrics, metastore = CleaningMetrics(CollectorRegistry()), nouns(self.api)
        cleaner = Cleaner(self.store, metastore, 4, CleaningTerms(limits, 1 << 20), self.clock, self.rng, metrics)
        await cleaner.handle(job, Lease(metastore.jobs, job, self.clock, claimed_at=0, lease_ms=1))
        self.passes += 1
        if not self.api.is_raced:
            here = await self.read([e for e in self.partition.visible_extents if e.last_offset < wanted.end])
            assert by_spark == here, "L9: not the same"
        return True

    def state(self) -> CleaningState:
        """Return what the policy decides by, as describe_cleaning.sql finds it."""
        cleaned = self.api.cleaned_offsets.get(self.key, 0)
        roll = self.api.roll_offsets.get(self.key, 0)
        extents = [extent for extent in self.partition.visible_extents if extent.last_offset < roll]
        dirty = [extent for extent in extents if extent.last_offset >= cleaned]
        clean_bytes = sum(extent.length for extent in extents) - sum(extent.length for extent in dirty)
        end = max([cleaned, *(extent.last_offset + 1 for extent in dirty)])
        return CleaningState(
            *(self.key, self.end, roll, 0, None, True, cleaned, end),
            *(sum(extent.length for extent in dirty), clean_bytes, None, self.api.horizons.get(self.key), None),
        )

    async def spark_pass(self, partition: CleanablePartition, wanted: CleaningTask) -> list[Entry]:
        """Return what the tasks of a pass on Spark leave. Nothing is swapped in."""
        live = partition_plan(partition.live)
        end = end_of_pass(live, wanted)
        extents = [extent for extent in live.extents if extent.last_offset < end]
        parts = split_extents(extents, self.rng.choice((1, 200, 1 << 20)))
        now_ms = self.clock.wall_ms()
        plan = PassPlan(
            tuple(msgspec.structs.replace(live, extents=part) for part in parts),
            *(partition.cleaned_offset, end, partition.high_watermark - 1, now_ms, now_ms, wanted.delete_retention_ms),
            *(True, 1 << 20, 1 << 20, 0.0, 0.0, tuple(() for _ in parts)),
            *(partition.aborted, partition.log_start_offset),
        )
        encoded = msgspec.json.encode(plan)
        found: list[tuple[int, bytes, int]] = []
        newest: dict[bytes, int] = {}
        for number in range(len(parts)):
            async for rows in _Scan(encoded, b"secret", self.store)._extents(number):
                for row in rows.to_pylist():
                    found.append((number, row["digest"], row["offset"]))
                    if row["is_dirty"]:
                        newest[row["digest"]] = max(row["offset"], newest.get(row["digest"], -1))
        left: list[Extent] = []
        by_input = {SwapInput(extent.last_offset, extent.source): extent for extent in extents}
        for number in range(len(parts)):
            lost = [offset for part, digest, offset in found if part == number and offset < newest.get(digest, -1)]
            report = await _Rewrite(encoded, self.store).rewritten(number, numpy.array(lost, numpy.int64))
            assert report.why is None
            left += [by_input[SwapInput(*entry)] for entry in report.left]
            for file, runs in report.files:
                left += [Extent(*swap[:3], file.file_id, *swap[3:-1]) for run in runs for swap in run]
        return await self.read(sorted(left, key=lambda extent: extent.last_offset))

    async def read(self, extents: Sequence[Extent] | None = None) -> list[Entry]:
        """All that is in these extents, or in the log."""
        found: list[Entry] = []
        for extent in self.partition.visible_extents if extents is None else extents:
            if not is_in_file(extent):
                found.append(Entry(extent.base_offset, None, None, True))
                continue
            data = await self.store.get(object_key(extent.file_id), ByteRange(extent.position, extent.length))
            for batch in sound_batches(memoryview(data), extent, leader_epoch=extent.leader_epoch):
                for record in decode_records(batch.data):
                    horizon = batch.header.delete_horizon_ms if record.value is None else None
                    found.append(Entry(record.offset, _text(record.key), _text(record.value), False, horizon))
        return [entry for entry in found if extents is not None or entry.offset >= self.partition.log_start_offset]

    async def check(self) -> None:
        """Check what a reader may rely on at any moment."""
        there, start = await self.read(), self.partition.log_start_offset
        assert start == self.end or (there and there[-1].offset == self.end - 1), "no record or marker ends the log"
        last = {entry.key: entry for entry in self.committed if entry.key is not None}
        offsets = {entry.offset for entry in there}
        gone = [e for e in last.values() if e.offset >= start and e.value is not None and e.offset not in offsets]
        assert not gone, f"L2: the last value of a key is gone: {gone}"

    async def rest(self) -> None:
        """Clean while something is due, now and later: passes end, and only the log's end is left."""
        self.api.race = ""
        self.roll()
        for _ in range(5):
            for _ in range(4):
                if not await self.clean():
                    break
            else:
                raise AssertionError(f"passes do not come to rest: {self.state()}")
            await self.check()
            self.clock.jump(1.1)
        assert not await self.clean(), "a pass is due again and again"
        below = [entry for entry in await self.read() if entry.offset < self.end - 1]
        stays = [entry for entry in below if entry.is_marker or entry.key is None or entry.value is None]
        assert not stays, f"L6: not removed: {stays}"
        assert len({entry.key for entry in below}) == len(below), "a superseded record stays"

    def _note(self, first: int, records: Sequence[KeyValue]) -> None:
        self.committed += [Entry(first + n, key, value) for n, (key, value) in enumerate(records)]

    def _add(self, extent: Extent) -> None:
        self.partition.extents.append(extent)
        self.partition.high_watermark = extent.last_offset + 1


class _Api(ModelCleaningApi):
    """The model's API. A record may arrive before a swap, or the log start move."""

    def __init__(self, model: ModelMetastore, log: CleanedLog) -> None:
        super().__init__(model)
        self._log = log
        self.aborted: list[AbortedRange] = []
        self.race = ""
        self.is_raced = False

    async def cleanable_extents(self, ends: Sequence[tuple[int, int]]) -> tuple[int, list[CleanablePartition]]:
        self.is_raced = False
        now_ms, found = await super().cleanable_extents(ends)
        start = self._log.partition.log_start_offset
        return now_ms, [one._replace(aborted=tuple(self.aborted), log_start_offset=start) for one in found]

    async def swap_cleaned_extents(
        self, token: JobToken, file: NewFile, swaps: Sequence[Swap], cleaned_offsets: Sequence[int]
    ) -> list[SwapOutcome]:
        race, self.race = self.race, ""
        self.is_raced = self.is_raced or bool(race)
        if race == "append":
            await self._log.plain([("a", "late")])
        elif race == "log start":
            start, end = self._log.partition.log_start_offset, self._log.end
            self.model.move_log_start(self._log.key, self._log.rng.randint(start, end))
        elif race == "lose":
            return [SwapOutcome.LOST] * len(swaps)
        outcomes = await super().swap_cleaned_extents(token, file, swaps, cleaned_offsets)
        done = [swap for swap, outcome in zip(swaps, outcomes, strict=True) if outcome is SwapOutcome.DONE]
        ends = {entry.last_offset for swap in done for entry in swap.inputs if marker_of(entry.file_id) is not None}
        self.aborted = [one for one in self.aborted if one.last_offset not in ends]
        return outcomes


class _FromMemory:
    """Tasks that read from and write to a store in memory."""

    store: Any

    @asynccontextmanager
    async def _store(self, clock: Any, rng: Any) -> AsyncIterator[Any]:
        yield self.store


class _Scan(_FromMemory, ScanTask):
    def __init__(self, plan: bytes, secret: bytes, store: MemoryStore) -> None:
        super().__init__(plan, secret)
        self.store = store


class _Rewrite(_FromMemory, RewriteTask):
    def __init__(self, plan: bytes, store: MemoryStore) -> None:
        super().__init__(plan)
        self.store = store


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()
