"""Drivers of a stream are killed at random steps: every record once, over random histories on a real Postgres."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is needed: make setup")
pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs PySpark 4.2")

from headrace.scan.errors import DataLossError
from headrace.spark import stream
from headrace.spark.stream import StreamOffsets
from tests.agent.fetch.fetch_world import NEVER_SEEN
from tests.spark.micro_batches import STEPS, Checkpoint, DriverKilled, MicroBatches
from tests.spark.world import OLD_SECONDS, ScanWorld, records
from tests.storage.batches import plain_batch

SEEDS = range(4)


class StreamStory:
    """A history: writes, merges, growth and drivers that end at a random step."""

    def __init__(self, world: ScanWorld, seed: int) -> None:
        self.world, self.rng = world, random.Random(seed)
        self.checkpoint = Checkpoint()
        self.query: MicroBatches | None = None
        self.written = 0
        self.ahead = 0.0

    @property
    def options(self) -> dict[str, str]:
        limits: dict[str, str] = self.rng.choice([{}, {"maxOffsetsPerTrigger": str(self.rng.randint(1, 9))}])
        return {**self.world.options, "subscribe": "orders", "startingOffsets": "earliest"} | limits

    async def tell(self, steps: int) -> None:
        """Ends when nothing is left to read."""
        self.keys = await self.world.topic("orders", 2)
        for _ in range(steps):
            await self.rng.choice([self.write, self.write, self.batch, self.batch, self.merge, self.grow])()
        await self.write()
        while await self.batch(may_kill=False):
            pass
        await self.end()

    async def write(self) -> None:
        dead = plain_batch(1, b"dead", **NEVER_SEEN)
        self.written += 1
        chosen = sorted(self.rng.sample(self.keys, self.rng.randint(1, len(self.keys))))
        batches = [(key, records(self.written, self.rng.randint(1, 4))) for key in chosen]
        await self.world.commit(*(each for key, batch in batches for each in ((key, batch), (key, dead))))

    async def batch(self, *, may_kill: bool = True) -> bool:
        if self.query is None:
            self.query = await asyncio.to_thread(MicroBatches, self.options, self.checkpoint, self.rng)
        self.query.kill_at = self.rng.choice(["", *STEPS]) if may_kill else ""
        try:
            return await asyncio.to_thread(self.query.run)
        except DriverKilled:
            await self.end()
            return True

    async def merge(self) -> None:
        """And what became dead is deleted, as far as no pin keeps it."""
        self.ahead += OLD_SECONDS
        await self.world.pass_time(self.ahead)
        if await self.world.live_files(0):
            await self.world.compact(self.rng.choice([1, 2]))
        await self.world.delete_dead_files()

    async def grow(self) -> None:
        if len(self.keys) < 4:
            self.keys = await self.world.grow("orders", len(self.keys) + 1)

    async def end(self) -> None:
        if self.query is not None:
            await asyncio.to_thread(self.query.reader.stop)
            self.query = None

    def rows(self) -> list[tuple[str, int, int]]:
        return sorted(row for batch in self.checkpoint.rows.values() for row in batch)


async def tell(world: ScanWorld, seed: int) -> None:
    """A story, and what must be true at its end."""
    story = StreamStory(world, seed)
    try:
        await story.tell(14)
    finally:
        await story.end()
    consumed = [(row.topic, row.partition, row.offset) for row in await world.consumed("orders")]
    assert story.rows() == consumed
    assert not await world.pins(), "none is left"


@pytest.mark.requirement("X6.2")
@pytest.mark.parametrize("seed", SEEDS)
async def test_every_record_once(world: ScanWorld, seed: int) -> None:
    await tell(world, seed)


async def _one_too_far(self: stream._Driver) -> StreamOffsets:
    return {partition: offset + 1 for partition, offset in (await _newest(self)).items()}


async def _only_old_partitions(self: stream._Driver, start: StreamOffsets, end: StreamOffsets) -> Any:
    return await _plan(self, start, {p: offset for p, offset in end.items() if p in start})


_newest, _plan = stream._Driver.newest, stream._Driver.plan
BUGS: dict[str, tuple[str, Any]] = {
    "the offset is advanced too early": ("newest", _one_too_far),
    "new partitions are left out": ("plan", _only_old_partitions),
}


@pytest.mark.parametrize("bug", BUGS)
async def test_each_planted_bug_is_caught(bug: str, world: ScanWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    name, replacement = BUGS[bug]
    monkeypatch.setattr(stream._Driver, name, replacement)
    with pytest.raises((AssertionError, DataLossError)):
        await tell(world, 1)


async def test_a_topic_that_was_created_again_is_a_loss(world: ScanWorld) -> None:
    checkpoint, rng = Checkpoint(), random.Random(0)
    (key,) = await world.topic("orders", 1)
    await world.write(key, 1)
    options = {**world.options, "subscribePattern": "ord.*", "startingOffsets": "earliest"}
    query = await asyncio.to_thread(MicroBatches, options, checkpoint, rng)
    assert await asyncio.to_thread(query.run)
    topic_id = world.view.image.topics_by_name["orders"].topic_id
    assert await world.postgres.topics.delete_topics(await world.postgres.cluster.metadata_head(), [topic_id])
    (key,) = await world.topic("orders", 1)
    await world.write(key, 2, 5)
    with pytest.raises(DataLossError, match="topic was deleted"):
        await asyncio.to_thread(query.run)
    await asyncio.to_thread(query.reader.stop)

    lenient = await asyncio.to_thread(MicroBatches, options | {"failOnDataLoss": "false"}, checkpoint, rng)
    assert await asyncio.to_thread(lenient.run)
    await asyncio.to_thread(lenient.reader.stop)
    assert [len(rows) for rows in checkpoint.rows.values()] == [3, 5], "all of the new one"


async def test_a_stream_waits_for_enough_but_not_longer_than_its_delay(world: ScanWorld) -> None:
    checkpoint, rng = Checkpoint(), random.Random(0)
    (key,) = await world.topic("orders", 1)
    options = {
        **world.options, "subscribe": "orders", "startingOffsets": "earliest", "minOffsetsPerTrigger": "5",
        "maxOffsetsPerTrigger": "6", "maxTriggerDelay": "1h",
    }  # fmt: skip
    query = await asyncio.to_thread(MicroBatches, options, checkpoint, rng)
    await world.write(key, 1, 2)
    assert await asyncio.to_thread(query.run), "the first batch does not wait"
    await world.write(key, 2, 4)
    assert not await asyncio.to_thread(query.run)
    await world.write(key, 3, 4)
    assert await asyncio.to_thread(query.run)
    assert [len(rows) for rows in checkpoint.rows.values()] == [2, 6]
    query.reader.driver._admitted_at -= 3_601  # type: ignore[operator]
    assert await asyncio.to_thread(query.run)
    assert len(checkpoint.rows[2]) == 2, "it waited for an hour"
    await asyncio.to_thread(query.reader.stop)
