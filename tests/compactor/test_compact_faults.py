"""A compaction job that crashes, stalls or meets others at every step: nothing lost or doubled, the job continues.

Fault model: the worker is killed before or after its n-th call to metastore or bucket, for every n; its
lease is taken over in the middle; answers of swaps are lost; the id is condemned; inputs are missing or
broken. After each, another worker ends the job, and readers see the very records that were there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.compactor.janitor import Janitor, JanitorMetrics
from headrace.compactor.merge import COMPLAINTS_MAX
from headrace.compactor.permit import Undecided
from headrace.compactor.sources import damaged_extent
from headrace.compactor.sweeper import Sweeper
from headrace.compactor.take_over import SWAP_ATTEMPTS
from headrace.metastore.api.compaction import DamageKind, NewFile, Swap, SwapOutcome
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import is_in_file
from headrace.metastore.api.retention import TO_HIGH_WATERMARK, LogStartTarget
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError, NotFoundError, OutcomeUnknownError, UnavailableError
from headrace.storage.file_id import file_id_of, new_file_id, object_key
from headrace.storage.objects.store import ByteRange, ObjectStore, StoreDecorator
from headrace.storage.records.codec import Record
from headrace.storage.segment import rereading
from tests.agent.fetch.fetch_world import NEVER_SEEN
from tests.compactor.janitor_world import Killed, Tripwire
from tests.compactor.world import CompactionWorld
from tests.metastore.commit_scenes import condemn
from tests.metastore.sessions import move_time, session, set_for_cluster
from tests.nouns import NOUNS, flat
from tests.storage.altered_reads import InstantClock, flipped
from tests.storage.batches import forge, plain_batch

SMALL = {"file_bytes": 1_500, "extent_bytes": 900, "batch_bytes": 500}
"""A few files, of a few extents, of a few batches."""

Seen = list[list[tuple[bool, int, Record]]]


async def fill(world: CompactionWorld, files: int = 4) -> list[int]:
    keys = await world.topic("t", 3)
    for number in range(files):
        batches = []
        for key in keys:
            batches += [(key, plain_batch(3, b"%d" % number * 40)), (key, plain_batch(1, b"dead" * 30, **NEVER_SEEN))]
        await world.commit(*batches)
    return keys


async def seen(world: CompactionWorld, keys: list[int]) -> Seen:
    return [await world.records(key) for key in keys]


async def take_over(world: CompactionWorld) -> None:
    """Another worker claims the job once the first one's lease, of a millisecond, has run out, and ends it."""
    await world.clock.sleep(0.005)
    await world.run(await world.claim_next(), world.compactor(**SMALL))


async def check_objects(world: CompactionWorld) -> None:
    """Every named file's object is there, whole."""
    stored = {file_id_of(info.key): info.size async for info in world.store.list_objects("segments/")}
    for file_id, row in (await world.file_rows()).items():
        if row["state"] == 0 and row["dead_at"] is None:
            assert stored[file_id] == row["size"]


@pytest.mark.keyless  # with keys: test_segments.py
@pytest.mark.requirement("W10")
@pytest.mark.parametrize(
    ("level", "after"),
    [  # killed before a call is, but for the first one, killed after the call before it
        pytest.param(1, True, id="1-after"),
        pytest.param(2, True, id="2-after"),
        pytest.param(1, False, id="1-before", marks=pytest.mark.slow),
        pytest.param(2, False, id="2-before", marks=pytest.mark.slow),
    ],
)
async def test_killed_at_every_step_the_job_goes_on(world: CompactionWorld, level: int, after: bool) -> None:
    keys = await world.topic("t", 3)
    step, steps = 1, 0
    while not steps:
        for _ in range(2):
            await world.commit(*((key, plain_batch(3, b"value" * 40)) for key in keys))
        before = await seen(world, keys)
        wire = Tripwire(step, after=after)
        job = await world.claim(await world.live_files(level=0), level, lease_ms=1)
        worker = world.compactor(store=wire.over(world.store), metastore=wire.over(world.postgres), **SMALL)
        try:
            await worker.handle(job, world.lease(job, lease_ms=1))
            steps = step
        except Killed:
            assert await seen(world, keys) == before, f"half done, at step {step}"
            await world.check_accounts()
        await take_over(world)
        assert await seen(world, keys) == before, f"at step {step}"
        await world.check_accounts()
        await check_objects(world)
        step += 1
    assert steps > 6, "plan, reads, puts and swaps"
    await check_sweeping(world)
    assert await seen(world, keys) == before


async def check_sweeping(world: CompactionWorld) -> None:
    """Hours later: what killed workers stored and never named goes, and what is dead; every live file stays."""
    stored = {file_id_of(info.key) async for info in world.store.list_objects("segments/")}
    orphans = stored - set(await world.file_rows())
    live = set(await world.live_files())
    assert orphans, "some crashed between the put and its first swap"
    assert live < stored
    async with session(world.url) as connection:
        await move_time(connection, 4 * 3600)
    await world.run_job("sweep", Sweeper(world.postgres, world.store, janitor_metrics()))
    swept = {file_id_of(info.key) async for info in world.store.list_objects("segments/")}
    assert swept == stored - orphans, "the sweeper takes orphans, and nothing that was ever named"
    await run_janitor(world)
    assert {file_id_of(info.key) async for info in world.store.list_objects("segments/")} == live
    assert set(await world.live_files()) == live
    await check_objects(world)


async def test_a_worker_that_lost_its_lease_swaps_nothing(world: CompactionWorld) -> None:
    keys = await fill(world)
    before, extents = await seen(world, keys), await world.extents(*keys)
    job = await world.claim(await world.live_files(), 1, lease_ms=1)
    lease = world.lease(job, lease_ms=1)
    await world.clock.sleep(0.005)
    other = await world.claim_next()
    with pytest.raises(FencedError):
        await world.compactor().handle(job, lease)
    assert await world.extents(*keys) == extents
    await world.run(other)
    assert await seen(world, keys) == before
    (file_extent, *_) = filter(is_in_file, extents)
    with pytest.raises(FencedError):
        await world.postgres.compaction.mark_damaged(job.token, [damaged_extent(file_extent, NotFoundError("gone"))])


class Forgetful:
    """Loses the answers of the first swaps, after or before they happened."""

    def __init__(self, metastore: PostgresMetastore, lose: int, *, happened: bool) -> None:
        self._metastore, self.lose, self._happened = metastore, lose, happened

    async def swap_extents(self, token: JobToken, file: NewFile, swaps: list[Swap]) -> list[SwapOutcome]:
        if self.lose == 0:
            return await self._metastore.compaction.swap_extents(token, file, swaps)
        self.lose -= 1
        if self._happened:
            await self._metastore.compaction.swap_extents(token, file, swaps)
            raise OutcomeUnknownError("answer lost")
        raise UnavailableError("deadlock detected")

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self
        return getattr(flat(self._metastore), name)


@pytest.mark.parametrize("happened", [False, True])
async def test_a_swap_in_doubt_is_repeated_until_it_is_answered(world: CompactionWorld, happened: bool) -> None:
    keys = await fill(world)
    before = await seen(world, keys)
    metastore = Forgetful(world.postgres, SWAP_ATTEMPTS - 1, happened=happened)
    await world.run(await world.claim(await world.live_files(), 1), world.compactor(metastore=metastore))
    assert await seen(world, keys) == before
    assert world.counted("extents_total", side="lost") == 0
    assert world.counted("extents_total", side="after") == 3
    await world.check_accounts()


@pytest.mark.keyless  # an id with keys is reserved: the sweeper cannot take it
async def test_an_id_that_the_sweeper_took_is_never_named(world: CompactionWorld) -> None:
    keys = await fill(world)
    before, extents = await seen(world, keys), await world.extents(*keys)

    class Swept(Forgetful):
        async def swap_extents(self, token: JobToken, file: NewFile, swaps: list[Swap]) -> list[SwapOutcome]:
            async with session(world.url) as sweeper:
                await condemn(sweeper, file.file_id)
            return await world.postgres.compaction.swap_extents(token, file, swaps)

    job = await world.claim(await world.live_files(), 1)
    with pytest.raises(NotFoundError):
        await world.compactor(metastore=Swept(world.postgres, 0, happened=False)).handle(job, world.lease(job))
    assert await world.extents(*keys) == extents
    old = NewFile(new_file_id(world.service.database_now_ms() - 3_700_000, world.rng), 1, 100, 50)
    with pytest.raises(NotFoundError):
        await world.postgres.compaction.swap_extents(job.token, old, [a_swap(extents)])
    assert await seen(world, keys) == before
    await world.check_accounts()


def a_swap(extents: list[Any]) -> Swap:
    """Return a swap of the first extent alone."""
    key, base, last, file_id, _, length, leader_epoch, time = extents[0]
    return Swap(key, base, last, 16, length, leader_epoch, time, ((last, file_id),))  # type: ignore[arg-type]


@pytest.mark.requirement("W9")
async def test_what_others_took_meanwhile_is_lost_and_nothing_else(world: CompactionWorld) -> None:
    """Retention moves one log start, a topic goes, another job merges: between the merge and its swaps."""
    keys = await fill(world)
    (gone,) = await world.topic("gone", 1)
    await world.commit((gone, plain_batch(1)))
    first = (await world.extents(keys[0]))[:2]

    class Racing(Forgetful):
        begun = False

        async def swap_extents(self, token: JobToken, file: NewFile, swaps: list[Swap]) -> list[SwapOutcome]:
            if not self.begun:
                self.begun = True
                target = LogStartTarget(keys[1], 7)
                await world.postgres.retention.move_log_starts([target], max_extents=100)
                topic = world.view.image.topics_by_name["gone"].topic_id
                assert await world.postgres.topics.delete_topics(await world.postgres.cluster.metadata_head(), [topic])
                other = await world.claim([extent.source for extent in first[:1]], 1)
                await world.run(other)
            return await world.postgres.compaction.swap_extents(token, file, swaps)

    before = await seen(world, keys)
    job = await world.claim(await world.live_files(), 1)
    worker = world.compactor(metastore=Racing(world.postgres, 0, happened=False), extent_bytes=500)
    await world.run(job, worker)
    assert await world.records(keys[0]) == before[0]
    assert await world.records(keys[1], 7) == [item for item in before[1] if item[2].offset >= 7]
    assert await world.records(keys[2]) == before[2]
    await world.check_accounts()


async def test_a_missing_file_and_a_broken_extent_block_no_other_file(world: CompactionWorld) -> None:
    keys = await fill(world)
    before = await seen(world, keys)
    files = await world.live_files()
    await world.store.rewrite(object_key(files[1]), lambda body: None)
    broken = next(extent for extent in await world.extents(keys[0]) if extent.file_id == files[2])
    at = broken.position + 16  # the magic byte: no batch any more
    await world.store.rewrite(object_key(files[2]), lambda body: body[:at] + b"\xff" + body[at + 1 :])

    await world.run(await world.claim(files, 1), world.compactor(clock=InstantClock()))

    left = [extent for extent in await world.extents(*keys) if extent.file_id in files]
    assert {extent.file_id for extent in left} == {files[1], files[2]}
    assert broken in left
    assert [extent for extent in left if extent.file_id == files[2]] == [broken]
    assert world.counted("unreadable_extents_total") == 4
    damaged = await world.postgres.compaction.damaged_parts([(key, 100) for key in keys])
    assert Counter((one.file_id, one.kind) for one in damaged) == {
        (files[1], DamageKind.MISSING): 3,
        (files[2], DamageKind.ALTERED): 1,
    }
    assert (await world.file_rows())[files[0]]["dead_at"] is not None
    await world.check_accounts()
    assert await world.records(keys[1], 9) == [item for item in before[1] if item[2].offset >= 9]


@pytest.mark.parametrize("level", [1, 2])
async def test_a_batch_that_cannot_be_opened_is_copied_as_it_is(
    world: CompactionWorld, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its producer wrote a header that contradicts its records: it is copied between its neighbours, and the log names
    it if it should have been opened.
    """
    (key,) = await world.topic("t", 1)
    contradictory = forge(plain_batch(1, b"x" * 70), record_count=2, last_offset_delta=1)
    for number in range(3):
        await world.commit((key, contradictory if number == 1 else plain_batch(2, b"%d" % number * 10)))
    odd = (await world.extents(key))[1].file_id

    await world.run(await world.claim(await world.live_files(), level))

    (extent,) = await world.extents(key)
    assert (extent.base_offset, extent.last_offset) == (0, 5)
    lines = [line for line in caplog.messages if line.startswith("batch not rewritten")]
    topic_id = world.view.image.topics_by_name["t"].topic_id
    named = f"topic_id={topic_id} partition=0 offsets=2-3 file={odd} error="
    assert [named in line for line in lines] == [True] * (level - 1)
    assert world.counted("kept_batches_total") == level - 1
    merged = await world.store.get(object_key(extent.source))
    assert contradictory[17:] in merged, "from the checksum on"
    assert await world.live_files() == [extent.source], "nothing is left behind in the old ones"


@pytest.mark.parametrize("level", [1, 2])
async def test_an_extent_with_a_damaged_batch_stays_as_a_whole(
    world: CompactionWorld, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A flipped bit in the stored first batch: its neighbours are merged around the extent, and the log names it."""
    (key,) = await world.topic("t", 1)
    for number in range(3):
        await world.commit((key, plain_batch(2, b"%d" % number * 10)), (key, plain_batch(1, b"x" * 10)))
    first = (await world.extents(key))[0]
    await world.store.rewrite(object_key(first.source), lambda body: flipped(body, [first.position + 70]))

    await world.run(await world.claim(await world.live_files(), level), world.compactor(clock=InstantClock()))

    extents = await world.extents(key)
    assert extents[0] == first
    assert [(e.base_offset, e.last_offset) for e in extents] == [(0, 2), (3, 8)]
    topic_id = world.view.image.topics_by_name["t"].topic_id
    (line,) = [line for line in caplog.messages if line.startswith("extent not merged")]
    assert f"topic_id={topic_id} partition=0 offsets=0-2 file={first.file_id}" in line
    assert [item[2].offset for item in await world.records(key, 3)] == list(range(3, 9))
    assert await world.live_files() == sorted(extent.source for extent in extents)


async def test_the_log_names_the_first_of_much_damage(world: CompactionWorld, caplog: pytest.LogCaptureFixture) -> None:
    """A file with 30 partitions is gone, and in another every batch is damaged: the counters know how much."""
    keys = await world.topic("t", 30)
    for _ in range(3):
        await world.commit(*((key, plain_batch(1, b"value" * 10)) for key in keys))
    gone, broken, _ = await world.live_files()
    await world.store.rewrite(object_key(gone), lambda body: None)
    damaged = [e.position + 65 for e in await world.extents(*keys) if e.file_id == broken]
    await world.store.rewrite(object_key(broken), lambda body: flipped(body, damaged))
    await world.run(await world.claim(await world.live_files(), 2), world.compactor(clock=InstantClock()))
    assert world.counted("unreadable_extents_total") == 60
    lines = [line for line in caplog.messages if line.startswith(("extent not merged", "further damage"))]
    assert len(lines) == COMPLAINTS_MAX + 1
    assert len(await world.postgres.compaction.damaged_parts([(key, 100) for key in keys])) == 60
    assert len([line for line in caplog.messages if line.startswith("bytes failed their check")]) == rereading.LINES


class Gated(StoreDecorator):
    """Lets no read pass until `gate` is open; `reached` tells that one waits."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.reached, self.gate = asyncio.Event(), asyncio.Event()

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        self.reached.set()
        await self.gate.wait()
        return await super().get(key, byte_range)


async def run_janitor(world: CompactionWorld) -> None:
    """Delete at once what may be deleted."""
    await set_for_cluster(world.postgres, "file.delete.delay.ms", 0)
    await world.run_job("delete", Janitor(world.postgres, world.store, janitor_metrics()))


def janitor_metrics() -> JanitorMetrics:
    return JanitorMetrics(CollectorRegistry(), Undecided(CollectorRegistry()))


async def test_files_that_become_dead_during_a_merge_are_kept_until_it_ends(world: CompactionWorld) -> None:
    """Its lease is a read pin: what retention won is lost to it, but nothing is missing, and no alarm is raised."""
    keys = await fill(world)
    inputs = await world.live_files()
    async with session(world.url) as connection:
        await move_time(connection, 76 * 60)  # old enough to be deleted as soon as they are dead
    job = await world.claim(inputs, 2)
    store = Gated(world.store)
    worker = world.compactor(store=store)
    merging = asyncio.create_task(worker.handle(job, world.lease(job)))
    await store.reached.wait()
    await world.postgres.retention.move_log_starts(
        [LogStartTarget(key, TO_HIGH_WATERMARK) for key in keys], max_extents=1_000
    )
    await run_janitor(world)
    assert {file_id for file_id, row in (await world.file_rows()).items() if row["dead_at"]} == set(inputs)
    store.gate.set()
    await merging
    assert world.counted("unreadable_extents_total") == 0
    assert world.counted("extents_total", side="lost") > 0
    await world.postgres.jobs.finish_job(job.token)
    await run_janitor(world)
    stored = {file_id_of(info.key) async for info in world.store.list_objects("segments/")}
    assert not stored & set(inputs)
    assert not set(await world.file_rows()) & set(inputs)
