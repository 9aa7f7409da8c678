"""Random histories of real workers on real Postgres, with crashes: in the end every object is named or gone.

Fault model: workers, janitor and cleanup are killed before or after a random call; uploads fail; leases expire; several
jobs have the same inputs; log starts move and topics are deleted at any time. A run replays from its seed.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from headrace.jobs.kinds import COMPACT
from headrace.metastore.api.jobs import Job
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError, NotFoundError, UnavailableError
from headrace.storage.objects.store import StoreDecorator
from tests.compactor.janitor_world import Killed, Tripwire
from tests.compactor.segment_world import HOUR, SegmentWorld
from tests.metastore.sessions import delete
from tests.seeds import seeds

STEPS = 25
EXPECTED = (UnavailableError, NotFoundError, FencedError)
"""Another job was first, or an upload failed: the job is repeated."""


class Unsteady(StoreDecorator):
    """Every third put fails after it happened."""

    puts = 0

    async def put(self, key: str, data: bytes, **more: Any) -> Any:  # type: ignore[override]
        done = await super().put(key, data, **more)
        self.puts += 1
        if self.puts % 3 == 0:
            raise UnavailableError("timeout")
        return done


class History:
    """One run."""

    def __init__(self, world: SegmentWorld, seed: int) -> None:
        self.world, self.rng = world, random.Random(seed)
        self.topics: dict[str, list[int]] = {}

    async def run(self) -> None:
        await self.create("t0")
        for number in range(STEPS):
            steps = [self.fill, self.fill, self.compact, self.compact, self.compact, self.expire, self.keep_house]
            await self.rng.choice(steps)()
            if number % 10 == 9:
                await self.replace_topic(number)
            await self.check()
        while (job := await self.world.postgres.jobs.claim_job("test", [COMPACT.name], 60_000)) is not None:
            await self.work(job)
        before = await self.records()
        await self.world.settle()
        await self.world.check_rest()
        assert await self.records() == before

    async def create(self, name: str) -> None:
        self.topics[name] = await self.world.topic(name, 3)

    async def replace_topic(self, number: int) -> None:
        name = self.rng.choice(sorted(self.topics))
        await delete(self.world.postgres, self.world.view.image.topics_by_name[name].topic_id)
        del self.topics[name]
        await self.world.postgres.housekeeping.purge_deleted_partitions(self.rng.choice((1, 1_000)))
        await self.create(f"t{number}")

    async def fill(self) -> None:
        keys = [key for keys in self.topics.values() for key in keys]
        chosen = sorted(self.rng.sample(keys, self.rng.randint(1, len(keys))))
        await self.world.fill(chosen, files=self.rng.randint(1, 3))

    async def compact(self) -> None:
        files = await self.world.live_files()
        if not files:
            return
        chosen = sorted(self.rng.sample(files, self.rng.randint(1, len(files))))
        lease_ms = self.rng.choice((1, 60_000))
        job = await self.world.claim(chosen, self.rng.choice((1, 2)), lease_ms=lease_ms)
        await asyncio.sleep(0.003)
        await self.work(job)

    async def work(self, job: Job) -> None:
        """Under a lease that may be over, and perhaps killed."""
        world, wire = self.world, self.wire()
        store: Any = Unsteady(world.store) if self.rng.random() < 0.3 else world.store
        parts = {"store": wire.over(store), "metastore": wire.over(world.postgres)}
        limits = {"file_bytes": self.rng.choice((300, 1 << 20)), "extent_bytes": self.rng.choice((200, 1 << 20))}
        try:
            await world.compactor(**parts, **limits).handle(job, world.lease(job))
            await world.postgres.jobs.finish_job(job.token)
        except Killed:
            await world.advance(61)
        except EXPECTED as error:
            if not isinstance(error, FencedError):
                await world.postgres.jobs.fail_job(job.token, str(error), 0)

    async def expire(self) -> None:
        key = self.rng.choice([key for keys in self.topics.values() for key in keys])
        extents = await self.world.extents(key)
        if extents:
            start = self.rng.choice(extents).last_offset + 1
            await self.world.postgres.retention.move_log_starts([LogStartTarget(key, start)], max_extents=1_000)

    async def keep_house(self) -> None:
        world, run = self.world, self.rng.choice(("janitor", "clean_up"))
        await world.advance(self.rng.choice((0, HOUR, 3 * HOUR)))
        wire = self.wire()
        parts = {"api": wire.over(world.postgres)} | ({"store": wire.over(world.store)} if run == "janitor" else {})
        try:
            await getattr(world, run)(**parts)
        except Killed:
            await world.advance(61)

    def wire(self) -> Tripwire:
        """Kills soon, or not at all."""
        return Tripwire(self.rng.choice((1, 2, 3, 4, 6, 9, 1_000, 1_000, 1_000)), after=self.rng.random() < 0.5)

    async def check(self) -> None:
        """Check what holds at any time."""
        await self.world.check_references()
        await self.world.check_accounts()
        readable = await self.world.ask("SELECT DISTINCT file_id FROM extents JOIN partitions USING (partition_key)")
        assert {file_id for (file_id,) in readable} <= await self.world.objects(), "what is readable is stored"
        assert not await self.world.ask(
            "SELECT FROM remote_segments WHERE live_extents > 0 AND (state <> 1 OR tombstoned_at IS NOT NULL)"
        )
        finished = "SELECT f.file_id FROM remote_segments s JOIN segment_files f USING (file_id)"
        early = await self.world.ask(f"{finished} WHERE s.state = 3 AND f.segments = 0 AND s.cause <> 6")
        assert not {file_id for (file_id,) in early} & await self.world.objects(), "DELETE_FINISHED after the object"

    async def records(self) -> list[Any]:
        return [
            await self.world.records(key, await self.start_of(key)) for keys in self.topics.values() for key in keys
        ]

    async def start_of(self, key: int) -> int:
        ((start,),) = await self.world.ask("SELECT log_start_offset FROM partitions WHERE partition_key = %s", key)
        return int(start)


@pytest.mark.requirement("R6", "R11")
@pytest.mark.parametrize("seed", seeds([1], range(2, 30)))
async def test_every_object_is_named_or_gone(seed: int, metastore: PostgresMetastore, metastore_url: str) -> None:
    async with SegmentWorld.running(metastore, metastore_url, seed) as world:
        await world.raise_level()
        await History(world, seed).run()
