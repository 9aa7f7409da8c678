"""Random histories in which files become dead in every way: what a reader may still read is in the bucket.

A file becomes dead by a merge, a lost swap, a log start, or the deletion of its topic; its keys by each of these under
another epoch, in any order. Two rules are checked after each run of janitor and cleanup: a scan under a read pin finds
every file that it planned, and a file is there for `file.delete.delay.ms` after the last time an extent named it. A run
replays from its seed.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from headrace.metastore.api.compaction import SwapOutcome
from headrace.metastore.api.retention import LogStartTarget
from headrace.storage.errors import NotFoundError, UnavailableError
from tests.compactor.segment_world import HOUR, SegmentWorld
from tests.metastore.sessions import delete, set_for_cluster
from tests.metastore.sql_sources import plant_all
from tests.overlay import Overlay
from tests.seeds import seeds

MINUTE = 60
DELAY = 10 * MINUTE
PIN = HOUR
ROUNDS = 4
STEPS = 9
PAUSES = (0, 4, 7)
"""Minutes between two steps of a round: less than the delay. Before each round all files are old enough to go."""


def racing(world: SegmentWorld, step: Any) -> Overlay:
    """The metastore of a merge: something happens before its first swap."""
    steps = [] if step is None else [step]

    async def swap_extents(*call: Any) -> list[SwapOutcome]:
        if steps:
            await steps.pop()()
        return await world.postgres.compaction.swap_extents(*call)

    return Overlay(world.postgres, swap_extents=swap_extents)


class FileEnds:
    """One history. `named`: when an extent named the file last. `pins`: until when, and the files of the plan."""

    def __init__(self, world: SegmentWorld, seed: int) -> None:
        self.world, self.rng = world, random.Random(seed)
        self.topics: dict[str, list[int]] = {}
        self.named: dict[uuid.UUID, float] = {}
        self.pins: list[tuple[float, set[uuid.UUID]]] = []

    async def run(self) -> None:
        self.topics["t"] = await self.world.topic("t", 2)
        steps = [self.compact, self.compact, self.race, self.race, self.race, self.expire, self.scan]
        for number in range(ROUNDS):
            for _ in range(2):
                await self.fill()
                await self.merge((await self.world.live_files(level=0))[:1], None)
            await self.world.advance(80 * MINUTE)
            for _ in range(STEPS):
                await self.rng.choice(steps)()
                await self.look()
                await self.world.advance(self.rng.choice(PAUSES) * MINUTE)
                await self.keep_house()
            if self.rng.random() < 0.3:
                await self.replace_topic(f"t{number}")
        await self.world.check_references()

    @property
    def keys(self) -> list[int]:
        return [key for keys in self.topics.values() for key in keys]

    async def fill(self) -> None:
        await self.world.fill(sorted(self.rng.sample(self.keys, self.rng.choice((1, 2)))), files=1)

    async def compact(self) -> None:
        await self.merge(self.some(await self.world.live_files()), None)

    async def race(self) -> None:
        """Another merge takes an input before the swap, or a log start does."""
        files = self.some(await self.world.live_files())
        if files:
            other = [self.rng.choice(files)]
            await self.merge(files, self.rng.choice((lambda: self.merge(other, None), self.expire)))

    def some(self, files: list[uuid.UUID]) -> list[uuid.UUID]:
        return sorted(self.rng.sample(files, min(len(files), self.rng.choice((1, 2, 2, 3)))))

    async def merge(self, files: list[uuid.UUID], step: Any) -> None:
        if not files:
            return
        job = await self.world.claim(files, self.rng.choice((1, 2)))
        try:
            await self.world.run(job, self.world.compactor(metastore=racing(self.world, step)))
        except (NotFoundError, UnavailableError):  # another merge had a higher epoch
            await self.world.postgres.jobs.finish_job(job.token)
        await self.look()

    async def expire(self) -> None:
        key = self.rng.choice(self.keys)
        extents = await self.world.extents(key)
        if extents:
            start = self.rng.choice(extents[:2]).last_offset + self.rng.choice((0, 1))
            await self.world.postgres.retention.move_log_starts(
                [LogStartTarget(key, start)], max_extents=self.rng.choice((1, 9))
            )

    async def replace_topic(self, name: str) -> None:
        gone = self.rng.choice(sorted(self.topics))
        await delete(self.world.postgres, self.world.view.image.topics_by_name[gone].topic_id)
        del self.topics[gone]
        self.topics[name] = await self.world.topic(name, 2)

    async def scan(self) -> None:
        """A plan under a read pin."""
        pin = await self.world.postgres.jobs.pin_reads(f"scan-{len(self.pins)}", PIN * 1000, 86_400_000)
        assert pin.token is not None
        planned = {extent.file_id for extent in await self.world.extents(*self.keys)}
        self.pins.append((self.world.ahead_seconds + PIN - MINUTE, planned))

    async def look(self) -> None:
        """Note what extents name now, those of deleted topics among them."""
        for (file_id,) in await self.world.ask("SELECT DISTINCT file_id FROM extents"):
            self.named[file_id] = self.world.ahead_seconds

    async def keep_house(self) -> None:
        await self.world.postgres.housekeeping.purge_deleted_partitions(self.rng.choice((1, 1_000)))
        await self.world.clean_up()
        await self.world.janitor()
        there, now = await self.world.objects(), self.world.ahead_seconds
        for until, planned in self.pins:
            assert now >= until or planned <= there, f"a scan under a pin misses {planned - there}"
        recent = {file_id for file_id, when in self.named.items() if now - when < DELAY - 1}
        assert recent <= there, f"deleted before file.delete.delay.ms: {recent - there}"
        self.named = {file_id: when for file_id, when in self.named.items() if file_id in there}


@pytest.fixture
async def world(world: SegmentWorld) -> SegmentWorld:
    await set_for_cluster(world.postgres, "file.delete.delay.ms", DELAY * 1000)
    return world


@pytest.mark.requirement("R5")
@pytest.mark.parametrize("seed", seeds([3], range(4, 40)))
async def test_a_reader_finds_what_it_may_still_read(world: SegmentWorld, seed: int) -> None:
    await FileEnds(world, seed).run()


async def test_a_planted_bug_is_caught(world: SegmentWorld) -> None:
    """A key with a lower epoch goes before its own time, and its file does not wait."""
    texts = [("OR s.due_at < p_before)", "OR true)"), ("AND file_is_unneeded(f, p_before)", "")]
    plant_all(world.url, "release_segments", texts)
    with pytest.raises(AssertionError, match="deleted before"):
        await FileEnds(world, 3).run()


async def test_each_key_keeps_its_own_due_time(world: SegmentWorld) -> None:
    """A later upload of the same end offset was lost nine minutes before the file with the live key became dead."""
    (key,) = await world.topic("t", 1)
    for _ in range(2):
        await world.fill([key], files=1)
        await world.run(await world.claim((await world.live_files(level=0))[:1], 1))
    first, last = await world.live_files(level=1)
    await world.advance(80 * MINUTE)

    async def replace() -> None:
        await world.run(await world.claim([first], 2))

    await world.run(await world.claim([first, last], 2), world.compactor(metastore=racing(world, replace)))
    await world.advance(9.5 * MINUTE)
    await world.run(await world.claim(await world.live_files(), 2))
    assert last not in await world.live_files()
    await world.advance(MINUTE)
    await world.janitor()
    assert last in await world.objects(), "dead for a minute, file.delete.delay.ms is ten"
    await world.advance(DELAY)
    await world.janitor()
    assert last not in await world.objects()
    await world.settle()
    await world.check_rest()
