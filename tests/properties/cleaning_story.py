"""A history of a compacted partition as it unfolds, and the model that says what a reader may see of it.

Fault model: between a pass's reads and its swaps, swaps are lost, other merges replace extents, the log start moves,
records arrive, and the pass may end in the middle. Old objects are deleted at once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from headrace.compactor.cleaning.job import Cleaner, CleaningTerms
from headrace.compactor.cleaning.metrics import CleaningMetrics
from headrace.compactor.cleaning.policy import CleaningJob, CleaningTask, encode_cleaning
from headrace.compactor.compact import CompactionMetrics, Compactor
from headrace.compactor.merge import MergeLimits
from headrace.compactor.plan import CompactionJob, encode
from headrace.jobs.lease import Lease
from headrace.metastore.api.compaction import NewFile, Swap, SwapOutcome
from headrace.metastore.api.jobs import Job, JobToken
from headrace.metastore.api.read import EpochEnd, EpochQuery
from headrace.storage.errors import UnavailableError
from headrace.storage.file_id import file_id_of, level_of
from headrace.storage.records.codec import Record, decode_records, encode_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import read_header
from tests.agent.fetch.fetch_world import World, split_sent
from tests.compactor.model_api import ModelCleaningApi
from tests.nouns import NOUNS, nouns

TIME_MS = 1_700_000_000_000
RETENTION_MS = 1_000
"""delete.retention.ms"""


class Write(NamedTuple):
    """One batch: (key or None, whether it has a value) of each record."""

    records: tuple[tuple[str | None, bool], ...]
    codec: Codec
    by_broker: bool


class Clean(NamedTuple):
    """A pass. `buffer_bytes` of its key map; `race` before its `race_at`-th swap call."""

    buffer_bytes: int
    extent_bytes: int
    file_bytes: int
    batch_bytes: int
    race: str
    race_at: int


class Merge(NamedTuple):
    level: int
    extent_bytes: int


class Truth:
    """What readers may see of a partition that is cleaned by key."""

    def __init__(self) -> None:
        self.appended: list[Record] = []
        self.earlier_seen_ms: dict[int, int] = {}
        """By a delete marker's offset: when an earlier record of its key was last there."""

    def check(self, seen: Sequence[Record], start: int, roll_offset: int, now_ms: int) -> None:
        """`seen`: all records that are there now, from log start `start` on."""
        written = {record.offset: record for record in self.appended}
        assert [record.offset for record in seen] == sorted({record.offset for record in seen}), "L3: order"
        assert all(written[record.offset] == record for record in seen), "L3: a record changed"
        there = {record.offset for record in seen}
        missing = [r for r in self.appended if r.offset >= start and r.offset not in there]
        assert all(record.offset < roll_offset for record in missing), "L4: the active part was cleaned"
        last = {record.key: record for record in self.appended if record.key is not None}
        for record in seen:
            newest = record if record.key is None else last.get(record.key, record)
            if newest.value is None and newest.offset != record.offset:
                self.earlier_seen_ms[newest.offset] = now_ms
        for record in missing:
            if record.key is None or record.offset != last[record.key].offset:
                continue
            assert record.value is None, f"L2: the last value of a key is gone: {record}"
            assert not [r for r in seen if r.key == record.key], f"L6: a delete marker went before: {record}"
            since = self.earlier_seen_ms.get(record.offset, 0)
            assert now_ms - since >= RETENTION_MS, f"L6: a delete marker went too early: {record}"


class Story:
    """One partition; `passed` counts complete passes."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed=seed)
        self.rng = random.Random(seed)
        (self.key,) = self.world.create_topic("t", 1)
        self.api = ModelCleaningApi(self.world.model)
        self.truth = Truth()
        self.metrics = CollectorRegistry()
        self.cleaning_metrics = CleaningMetrics(self.metrics)

    @property
    def partition(self) -> Any:
        return self.world.model.partitions[self.key]

    async def tell(self, history: Sequence[Any]) -> None:
        """Each step, and what readers see after it; at the end the topic is quiet."""
        await self.world.service.start()
        for step in history:
            match step:
                case Write():
                    await self.write(step)
                case Clean():
                    await self.clean(step)
                case Merge():
                    await self.merge(step)
                case "roll":
                    self.api.roll_offsets[self.key] = self.partition.high_watermark
                case "epoch":
                    self.world.model.set_leader_epoch(self.key, self.partition.leader_epoch + 1)
                case "log start":
                    self.move_log_start()
                case int():
                    await self.world.clock.advance(step / 1000)
            await self.check()
        await self.quiet()
        await self.world.service.close()

    async def write(self, step: Write) -> None:
        base = TIME_MS + self.rng.randint(-5, 5)
        records = [
            Record(number, base + number, None if key is None else key.encode(), b"v" * 20 if has_value else None)
            for number, (key, has_value) in enumerate(step.records)
        ]
        batch = encode_batch(records, codec=step.codec, base_offset=0, log_append_time=step.by_broker)
        before = len(self.world.live[self.key])
        await self.world.write([(self.key, batch)], own=self.rng.random() < 0.5)
        for live in self.world.live[self.key][before:]:
            self.truth.appended += decode_records(memoryview(live.sent(self.partition.leader_epoch)))

    def move_log_start(self) -> None:
        offset = self.rng.randint(self.partition.log_start_offset, self.partition.high_watermark)
        self.world.model.move_log_start(self.key, offset)

    def cleaner(self, step: Clean, metastore: Any) -> Cleaner:
        limits = MergeLimits(file_bytes=step.file_bytes, extent_bytes=step.extent_bytes, batch_bytes=step.batch_bytes)
        return Cleaner(
            *(self.world.store, metastore, self.world.model.shards, CleaningTerms(limits, step.buffer_bytes)),
            *(self.world.clock, self.rng, self.cleaning_metrics),
        )

    async def clean(self, step: Clean) -> None:
        """One pass over all that is below the roll offset."""
        await self.merge(Merge(1, 100))  # as the planner does: cleaning takes no file of level 0
        epochs = await self.epoch_ends()
        task = CleaningTask(self.key, self.partition.high_watermark, RETENTION_MS)
        job = Job(JobToken(1, 1), "clean", "", encode_cleaning(CleaningJob((task,))), 1, "")
        racing = Racing(self, step)
        try:
            await self.cleaner(step, racing).handle(job, self._lease(job))
        except UnavailableError:
            assert step.race == "crash"
        if step.race not in ("log start", "write"):
            assert await self.epoch_ends() == epochs, "the ends of leader epochs changed"
        await self._delete_dead_files()

    async def merge(self, step: Merge, *, may_delete: bool = True) -> None:
        """All files, at once."""
        wanted = (0,) if step.level == 1 else (0, 1, 2)
        live = tuple(sorted({e.file_id for e in self.partition.extents if level_of(e.file_id) in wanted}))
        limits = MergeLimits(extent_bytes=step.extent_bytes)
        metrics = CompactionMetrics(CollectorRegistry())
        worker = Compactor(
            self.world.store, nouns(self.api), self.world.model.shards, limits, self.world.clock, self.rng, metrics
        )
        job = Job(JobToken(1, 1), "compact", "", encode(CompactionJob(live, step.level)), 1, "")
        await worker.handle(job, self._lease(job))
        if may_delete:
            await self._delete_dead_files()

    async def quiet(self) -> None:
        """Two passes after the lags: one record per key is left, and no delete marker but what ends the log; that goes
        when a record follows it.
        """
        await self.clean_all()
        seen = await self.read(self.partition.log_start_offset)
        self.check_clean(seen[:-1] if seen and seen[-1].offset == self.partition.high_watermark - 1 else seen)
        await self.write(Write((("z", True),), Codec.NONE, False))
        await self.clean_all()
        self.check_clean(await self.read(self.partition.log_start_offset))
        for offset in range(self.partition.log_start_offset, self.partition.high_watermark):
            assert await self.fetch(offset), "L3: no batch at an offset"

    async def clean_all(self) -> None:
        """Two passes, the second after delete.retention.ms."""
        step = Clean(1 << 20, 1 << 20, 1 << 20, 1 << 20, "", 0)
        self.api.roll_offsets[self.key] = self.partition.high_watermark
        await self.clean(step)
        await self.check()
        await self.world.clock.advance(RETENTION_MS / 1000 + 0.001)
        await self.clean(step)
        await self.check()

    def check_clean(self, seen: Sequence[Record]) -> None:
        """Check that nothing is left to do."""
        assert len({record.key for record in seen}) == len(seen), "a superseded record stays"
        assert all(record.key is not None and record.value is not None for record in seen), "an expired marker stays"
        assert self.api.cleaned_offsets.get(self.key, 0) == self.partition.high_watermark
        assert self.api.horizons.get(self.key) is None

    async def check(self) -> None:
        """Check what a reader sees, from the log start and from another offset."""
        start = self.partition.log_start_offset
        await self.read(start)  # a reader ends the quiet of the feed
        await self.world.clock.advance(0.2)
        seen = await self.read(start)
        now_ms = self.world.clock.wall_ms()
        self.truth.check(seen, start, self.api.roll_offsets.get(self.key, 0), now_ms)
        end = self.partition.high_watermark
        assert start == end or (seen and seen[-1].offset == end - 1), "no record ends the log"
        offset = self.rng.randint(start, self.partition.high_watermark)
        assert await self.read(offset) == [record for record in seen if record.offset >= offset], "L3: a position"
        extents = self.partition.visible_extents
        assert all(after.base_offset == e.last_offset + 1 for e, after in pairwise(extents))

    async def read(self, offset: int) -> list[Record]:
        """All records from `offset` on: each fetch below the high watermark moves the reader on."""
        found: list[Record] = []
        at = offset
        while at < self.partition.high_watermark:
            batches = await self.fetch(at)
            assert batches, f"L3: no batch at an offset: {at}"
            for sent in batches:
                header = read_header(sent)
                assert header.base_offset <= at <= header.base_offset + header.last_offset_delta
                found += [record for record in decode_records(memoryview(sent)) if record.offset >= offset]
                at = header.base_offset + header.last_offset_delta + 1
        return found

    async def fetch(self, offset: int) -> list[bytes]:
        """The batches of one fetch."""
        result = await self.world.fetch({self.key: offset}, partition_max_bytes=600)
        assert result.code(self.key) == 0
        return split_sent(result.records(self.key))

    async def epoch_ends(self) -> list[EpochEnd]:
        """OffsetForLeaderEpoch, for every epoch."""
        epochs = range(self.partition.leader_epoch + 1)
        return await self.world.model.find_epoch_ends([EpochQuery(self.key, epoch) for epoch in epochs])

    async def _delete_dead_files(self) -> None:
        named = {extent.file_id for extent in self.partition.extents}
        stored = [info.key async for info in self.world.store.list_objects("segments/")]
        await self.world.store.delete_many([key for key in stored if file_id_of(key) not in named])

    def _lease(self, job: Job) -> Lease:
        api: Any = None  # it is not renewed
        return Lease(api, job, self.world.clock, claimed_at=0, lease_ms=1)


class Racing:
    """The model's API, to one pass; something happens before its `race_at`-th swap call."""

    def __init__(self, story: Story, step: Clean) -> None:
        self._story, self._step = story, step
        self._calls = 0

    async def swap_cleaned_extents(
        self, token: JobToken, file: NewFile, swaps: Sequence[Swap], cleaned_offsets: Sequence[int]
    ) -> list[SwapOutcome]:
        self._calls += 1
        story = self._story
        if self._calls == self._step.race_at:
            match self._step.race:
                case "lose":
                    return [SwapOutcome.LOST] * len(swaps)
                case "crash":
                    raise _Crash("the process ends here")
                case "merge":
                    await story.merge(Merge(2, 1 << 20), may_delete=False)
                case "log start":
                    story.move_log_start()
                case "write":
                    await story.write(Write((("a", False), ("b", True)), Codec.NONE, False))
        outcomes = await story.api.swap_cleaned_extents(token, file, swaps, cleaned_offsets)
        again = await story.api.swap_cleaned_extents(token, file, swaps, cleaned_offsets)
        assert again == outcomes, "a repeated swap is harmless"
        return outcomes

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self
        return getattr(self._story.api, name)


class _Crash(UnavailableError):
    """The process ends: nothing is repeated."""
