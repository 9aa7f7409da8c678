"""Links under faults: lost and late answers, two workers, kills at any step, a source that changes under them.

A schedule is drawn from a seed: events at the source, and runs of one or two workers with faults. At every step what
is stored is judged: each committed record once, at its offset, none of an aborted transaction, no gap.
Fault model of the metastore: a call is lost, its answer is lost, or it happens later than its caller waits. Of the
bucket: a PUT fails, or is done and fails. A worker is killed at a call.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.compactor.links import chunks, copy_job, partition_copy
from headrace.compactor.links.source import Fetched
from headrace.metastore.postgres.links.links import PostgresLinks
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import HeadraceError, OutcomeUnknownError, UnavailableError
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.records.codec import Record
from headrace.storage.records.header import HEADER, batch_crc, read_header
from tests.compactor.links.link_world import LinkWorld
from tests.compactor.links.source_log import SourceLog
from tests.metastore.segment_keys import with_keys
from tests.metastore.sessions import Session
from tests.patch import Patch
from tests.seeds import seeds

pytestmark = pytest.mark.requirement("X14")

STEPS = 14
CALM_RUNS = 100
"""Each ends early when there is nothing to do; a busy machine needs several."""
RUN_SECONDS = 10.0
"""Of a clock that is 200 times as fast."""
Call = Callable[..., Awaitable[Any]]


class Faults:
    """What goes wrong, by a seed; none once `calm`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.calm = False
        self.late: list[Callable[[], Awaitable[Any]]] = []
        self.killed: set[asyncio.Task[Any]] = set()
        self.happened = 0

    def around(self, call: Call) -> Call:
        """The call, with faults."""

        async def faulty(*given: Any, **named: Any) -> Any:
            fate = 1.0 if self.calm else self.rng.random()
            self.happened += fate < 0.4
            if fate < 0.1:
                raise UnavailableError("the request was lost")
            if fate < 0.2:
                self.late.append(lambda: call(*given, **named))
                raise OutcomeUnknownError("the request happens later")
            if fate < 0.3 and (task := asyncio.current_task()) is not None:
                self.killed.add(task)
                task.cancel()
            answer = await call(*given, **named)
            if fate < 0.4:
                raise OutcomeUnknownError("the answer was lost")
            return answer

        return faulty


class Judge:
    """What the copy may have: every record that was ever committed at the source, by partition and offset."""

    def __init__(self, world: LinkWorld) -> None:
        self._world = world
        self._ever: dict[tuple[str, int], dict[int, Record]] = {}

    def note(self) -> None:
        """Look at what is committed."""
        for name, topic in self._world.source.topics.items():
            for index, log in enumerate(topic.logs):
                self._ever.setdefault((name, index), {}).update({each.offset: each for each in log.visible})

    async def check(self, *, is_complete: bool) -> None:
        """Compare what is stored with it."""
        for each in await self._world.progress():
            ever = self._ever[each.topic, each.partition_index]
            records = await self._world.records(each.partition_key)
            offsets = [record.offset for record in records]
            assert offsets == sorted(set(offsets)), "doubled or out of order"
            assert all(ever.get(record.offset) == record for record in records), "never committed, or moved"
            log = self._world.source.topics[each.topic].logs[each.partition_index]
            wanted = [r.offset for r in log.visible if each.log_start_offset <= r.offset < each.high_watermark]
            assert set(wanted) <= set(offsets), "left out"
            if is_complete:
                assert (each.problem, each.high_watermark, each.log_start_offset) == ("", log.stable, log.start)


def _event(rng: random.Random, log: SourceLog) -> None:
    """Let something happen at the source."""
    producer = rng.choice([-1, 3, 4])
    match rng.randrange(8):
        case 0 | 1 | 2:
            log.append(rng.randrange(1, 4), producer)
        case 3 | 4:
            log.append(rng.randrange(1, 4), 10 + rng.randrange(2), transactional=True)
        case 5:
            log.finish(10 + rng.randrange(2), commit=rng.random() < 0.6)
        case 6:
            log.clean({offset for offset in range(log.end) if rng.random() < 0.5}, keeps_empty=rng.random() < 0.5)
        case _:
            log.leader_epoch += 1
            if rng.random() < 0.3:
                log.delete_below(rng.randrange(log.stable + 1))


async def _run(world: LinkWorld, worker: str) -> None:
    """Let a worker run until its job ends, fails, or it is killed."""
    try:
        await world.run(worker=worker)
    except (HeadraceError, asyncio.CancelledError):
        return


async def schedule(world: LinkWorld, faults: Faults) -> None:
    """Run one."""
    rng, judge = faults.rng, Judge(world)
    topic = await world.add("orders", SourceLog(), SourceLog())
    judge.note()
    for step in range(STEPS):
        for _ in range(rng.randrange(6)):
            _event(rng, rng.choice(topic.logs))
            judge.note()
        world.source.answer_bytes = rng.choice([200, 600, 1 << 20])
        workers = [f"{step}{name}" for name in "ab"[: rng.choice([1, 1, 2])]]
        await asyncio.gather(*[asyncio.create_task(_run(world, worker)) for worker in workers])
        while faults.late and rng.random() < 0.6:
            late = faults.late.pop(rng.randrange(len(faults.late)))
            await asyncio.gather(late(), return_exceptions=True)
        await judge.check(is_complete=False)
    faults.calm = True
    for log in topic.logs:
        for producer in (10, 11):
            log.finish(producer, commit=True)
    judge.note()
    for turn in range(CALM_RUNS):
        await world.run(worker=f"calm{turn}")
        if all(each.high_watermark >= each.source_end >= 0 and not each.problem for each in await world.progress()):
            break
    await judge.check(is_complete=True)


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str, raw: Session, patch: Patch) -> LinkWorld:
    with_keys(metastore_url)
    await raw.execute("UPDATE controller SET controller_epoch = 5, deadline = 'infinity'")
    patch.replace(copy_job, "RUN_SECONDS", RUN_SECONDS)
    found = LinkWorld(metastore)
    await found.create()
    return found


def _faults(seed: int, patch: Patch) -> Faults:
    faults = Faults(random.Random(seed))
    patch.replace(PostgresLinks, "append_linked", faults.around(PostgresLinks.append_linked))
    patch.replace(MemoryStore, "put", faults.around(MemoryStore.put))
    return faults


@pytest.mark.parametrize("seed", seeds(range(2), range(2, 60)))
async def test_a_copy_is_its_source_under_faults(world: LinkWorld, patch: Patch, seed: int) -> None:
    faults = _faults(seed, patch)
    await schedule(world, faults)
    assert faults.happened or seed > 1, "a schedule without faults shows nothing"


def _not_hidden(right: Any) -> Any:
    return lambda self, batch: right(self, batch) and batch.header.is_control


def _renumbered(right: Any) -> Any:
    def skip(self: Any, end: int, leader_epoch: int) -> None:
        """Nothing becomes a tile."""

    return skip


def _ahead(right: Any) -> Any:
    def of(row: Any, now: float) -> Any:
        copy = right(row, now)
        copy.end = copy.stored_end = row.high_watermark + (row.high_watermark > 0)
        return copy

    return staticmethod(of)


def _unverified(right: Any) -> Any:
    def sound(view: memoryview, next_offset: int) -> Any:
        header = read_header(view)
        HEADER.pack_into(view, 0, *header._replace(crc=batch_crc(view)))
        return right(view, next_offset)

    return sound


BUGS: dict[str, tuple[Any, str, Any]] = {
    "aborted records are shown": (chunks.AbortedTransactions, "hide", _not_hidden),
    "offsets are renumbered behind a gap, and none ends a log": (chunks._Tiling, "skip", _renumbered),
    "a worker goes on above the log end": (partition_copy.PartitionCopy, "of", _ahead),
    "a batch is copied that was not verified": (chunks, "_sound", _unverified),
}


SEEDS = {"aborted records are shown": 2}
"""Schedules that show a bug; 1 for the others."""


@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_is_found(world: LinkWorld, patch: Patch, bug: str) -> None:
    owner, name, make = BUGS[bug]
    patch.replace(owner, name, make(getattr(owner, name)))
    flips = random.Random(3)

    def altered(part: Fetched) -> Fetched:
        if part.records and flips.random() < 0.3:
            part.records[-1] ^= 1
        return part

    if "verified" in bug:
        world.source.spoil = altered
    with pytest.raises((AssertionError, HeadraceError)):
        await schedule(world, _faults(SEEDS.get(bug, 1), patch))
