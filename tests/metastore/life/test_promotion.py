"""A standby is promoted, with and without a loss: nothing that the old life handed out is handed out again.

Real servers: a primary, streaming standbys, copies of the volume, a dump. The bucket is the only thing they share.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock
from unittest.mock import AsyncMock

import psycopg
import pytest

from headrace.config.settings import Settings
from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.jobs import NewJob
from headrace.metastore.api.life import ServerLife
from headrace.metastore.life.bucket import newest_life, read_position
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.numbers import NO_LIFE, epoch_floor, log_floor
from headrace.metastore.life.verdict import LifeVerdict
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.memory import MemoryStore
from load.postgres_servers import Servers, run
from tests.manual_clock import ManualClock
from tests.metastore.commit_scenes import batch, file_of
from tests.metastore.sessions import create, join, new_topic
from tests.patch import Patch, Plant


class Process:
    """A process of the service, as far as the metastore's life goes."""

    def __init__(self, metastore: PostgresMetastore, bucket: MemoryStore, seed: int) -> None:
        self.metastore = metastore
        self.keeper = LifeKeeper(metastore.life, bucket, ManualClock(), random.Random(seed))

    async def note(self, url: str) -> None:
        """Check once all WAL is flushed, and write the position to the bucket."""
        run(url, "CHECKPOINT")
        await self.keeper.check()
        await self.keeper.note_position()

    async def ids(self) -> int:
        """A block of producer ids."""
        return (await self.metastore.commits.allocate_producer_ids(1_000)).start


class World:
    """Servers, the bucket, and processes."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.bucket = MemoryStore(ManualClock())
        self._open: list[PostgresMetastore] = []

    async def process(self, server: str) -> Process:
        metastore = await PostgresMetastore.open(self.servers.url(server), Settings(metastore_pool_size=2))
        self._open.append(metastore)
        return Process(metastore, self.bucket, len(self._open))

    async def close(self) -> None:
        for metastore in self._open:
            await metastore.close()


@pytest.fixture
async def world(servers: Servers) -> AsyncIterator[World]:
    world = World(servers)
    yield world
    with contextlib.suppress(psycopg.Error):
        await world.close()


@pytest.mark.requirement("W1", "W7", "C1")
async def test_a_promotion_that_lost_commits_hands_out_nothing_again(world: World) -> None:
    old = await world.process("primary")
    assert await old.keeper.check() is LifeVerdict.CURRENT
    kept = (await create(old.metastore, new_topic("kept", 3))).topics_by_name["kept"]
    agent, key = await join(old.metastore), kept.key(0) or 0
    await old.metastore.commits.commit_files(*agent, [file_of([batch(key, sequence) for sequence in range(0, 40, 5)])])
    await asyncio.to_thread(world.servers.add_standby, "standby")
    await asyncio.to_thread(world.servers.cut, "standby")
    await old.metastore.commits.commit_files(*agent, [file_of([batch(key, sequence) for sequence in range(40, 80, 5)])])
    lost_topic = (await create(old.metastore, new_topic("lost", 2))).topics_by_name["lost"]
    lost_ids = await old.ids()
    lost_claim = await old.metastore.groups.claim_group("g", *agent)
    lost_lease = await old.metastore.controller.hold_controller_lease(1, uuid.UUID(int=1), 1)
    await old.metastore.jobs.enqueue_jobs([NewJob("k", "a", b"")])
    lost_job = await old.metastore.jobs.claim_job("w", ["k"], lease_ms=60_000)
    assert lost_claim is not None
    assert lost_job is not None

    await asyncio.to_thread(world.servers.promote, "standby")
    new = await world.process("standby")
    for writing in (new.ids(), create(new.metastore, new_topic("early")), join(new.metastore)):
        with pytest.raises(UnavailableError, match="another life"):
            await writing  # nothing is handed out before the new life has begun
    assert await new.keeper.check() is LifeVerdict.CURRENT
    assert new.metastore.life.named_life == 1

    image = await load_image(new.metastore.cluster)
    assert set(image.topics_by_name) == {"kept"}
    assert image.offset == log_floor(1)
    assert image.topics_by_name["kept"].leader_epochs == (epoch_floor(1),) * 3
    assert image.topics_by_name["kept"].topic_number == kept.topic_number
    again = (await create(new.metastore, new_topic("other", 2))).topics_by_name["other"]
    assert again.topic_number >= log_floor(1) > lost_topic.topic_number
    assert again.leader_epochs == (epoch_floor(1),) * 2
    assert await new.ids() >= 1 << 40 > lost_ids
    registered = await join(new.metastore)
    assert registered.broker_epoch > log_floor(1) > agent.broker_epoch
    stored, lost = batch(key, 0), batch(key, 45)
    (answer,) = await new.metastore.commits.commit_files(*registered, [file_of([stored, lost, batch(key, 40), lost])])
    assert [judged.outcome for judged in answer.batches] == [
        BatchOutcome.DUPLICATE_SEQUENCE,
        BatchOutcome.OUT_OF_ORDER,
        BatchOutcome.APPENDED,
        BatchOutcome.APPENDED,
    ]
    claim = await new.metastore.groups.claim_group("g", *registered)
    assert claim is not None
    assert claim.coordinator_epoch > 1 << 40 > lost_claim.coordinator_epoch
    lease = await new.metastore.controller.hold_controller_lease(1, uuid.UUID(int=1), 1)
    assert lease.is_own
    assert lease.controller_epoch > epoch_floor(1) > lost_lease.controller_epoch
    await new.metastore.jobs.enqueue_jobs([NewJob("k", "a", b"")])
    job = await new.metastore.jobs.claim_job("w", ["k"], lease_ms=60_000)
    assert job is not None
    assert job.token.epoch > epoch_floor(1) > lost_job.token.epoch

    # the old primary stays up, writable, and cut off from its successor: only the bucket says so
    assert await old.ids() > lost_ids
    assert await old.keeper.check() is LifeVerdict.SUPERSEDED
    assert old.metastore.life.named_life == NO_LIFE
    with pytest.raises(UnavailableError, match="another life"):
        await old.ids()
    late = await world.process("primary")  # one that starts now
    assert await late.keeper.check() is LifeVerdict.SUPERSEDED


async def test_a_promotion_without_a_loss_keeps_everything(world: World) -> None:
    old = await world.process("primary")
    await old.keeper.check()
    await asyncio.to_thread(world.servers.add_standby, "standby")
    agent = await join(old.metastore)
    await create(old.metastore, new_topic("t", 2))
    head = await old.metastore.cluster.metadata_head()
    await asyncio.to_thread(world.servers.wait_until_streamed, "standby")
    await asyncio.to_thread(world.servers.stop, "primary")
    await asyncio.to_thread(world.servers.promote, "standby")
    new = await world.process("standby")
    assert await new.keeper.check() is LifeVerdict.CURRENT
    image = await load_image(new.metastore.cluster)
    assert set(image.topics_by_name) == {"t"}
    assert image.agents[agent.node_id].broker_epoch == agent.broker_epoch < head
    claim = await new.metastore.groups.claim_group("g", *agent)
    assert claim is not None, "a registration that was not lost goes on"
    assert await new.keeper.check() is LifeVerdict.CURRENT
    assert new.metastore.life.named_life == 1, "checks that find nothing new begin nothing"


async def test_of_two_servers_that_reach_one_timeline_the_last_is_the_metastore(world: World) -> None:
    old = await world.process("primary")
    await old.keeper.check()
    for name in ("a", "b"):
        await asyncio.to_thread(world.servers.add_standby, name)
    for name in ("a", "b"):
        await asyncio.to_thread(world.servers.cut, name)
        await asyncio.to_thread(world.servers.promote, name)
    a, b = await world.process("a"), await world.process("b")
    assert (await a.metastore.life.describe_life()).server == (await b.metastore.life.describe_life()).server
    assert await a.keeper.check() is LifeVerdict.CURRENT
    assert (a.metastore.life.named_life, await a.ids() >> 40) == (1, 1)
    assert await b.keeper.check() is LifeVerdict.CURRENT
    assert (b.metastore.life.named_life, await b.ids() >> 40) == (2, 2)
    assert await a.keeper.check() is LifeVerdict.SUPERSEDED
    assert await b.keeper.check() is LifeVerdict.CURRENT


async def test_a_copy_of_the_volume_writes_nothing_until_an_operator_says_so(world: World) -> None:
    process = await world.process("primary")
    await process.keeper.check()
    await process.metastore.close()
    await asyncio.to_thread(world.servers.stop, "primary")
    await asyncio.to_thread(world.servers.copy_volume, "primary", "copy")
    await asyncio.to_thread(world.servers.start, "primary")
    process = await world.process("primary")
    lost = await process.ids()
    await process.note(world.servers.url("primary"))
    assert await read_position(world.bucket, 0) is not None
    await asyncio.to_thread(world.servers.stop, "primary")
    await asyncio.to_thread(world.servers.start, "copy")
    restored = await world.process("copy")
    assert await restored.keeper.check() is LifeVerdict.RESTORED
    with pytest.raises(UnavailableError):
        await restored.ids()
    assert await restored.keeper.begin_anew("restored") == 1
    assert await restored.keeper.check() is LifeVerdict.CURRENT
    assert await restored.ids() >= 1 << 40 > lost


async def test_a_dump_restored_into_the_same_server_writes_nothing_either(world: World) -> None:
    """Identifier and timeline are the same, and the WAL continued: the database is another one, and went back."""
    process = await world.process("primary")
    await process.keeper.check()
    data = await asyncio.to_thread(world.servers.dump, "primary")
    await create(process.metastore, new_topic("lost"))
    await process.note(world.servers.url("primary"))
    await process.metastore.close()
    await asyncio.to_thread(world.servers.restore, data, "primary")
    restored = await world.process("primary")
    assert await restored.keeper.check() is LifeVerdict.RESTORED
    assert await restored.keeper.begin_anew("restored") == 1
    assert await restored.ids() >= 1 << 40


async def test_what_a_killed_process_began_is_finished_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await world.process("primary")
    await old.keeper.check()
    await asyncio.to_thread(world.servers.add_standby, "standby")
    await asyncio.to_thread(world.servers.promote, "standby")
    first, second = await world.process("standby"), await world.process("standby")

    async def killed(life: int, incarnation_id: uuid.UUID) -> bool:
        raise UnavailableError(f"killed before life {life}")

    monkeypatch.setattr(first.metastore.life, "begin_life", killed)
    with pytest.raises(UnavailableError, match="killed"):
        await first.keeper.check()
    named = await newest_life(world.bucket, None)
    assert named is not None
    assert named.life == 1
    assert await old.keeper.check() is LifeVerdict.SUPERSEDED, "from the moment that the bucket names the next life"
    assert await second.keeper.check() is LifeVerdict.CURRENT
    assert second.metastore.life.named_life == 1
    again = await newest_life(world.bucket, None)
    assert again == named
    assert await first.keeper.check() is LifeVerdict.CURRENT


def _believes_what_it_found(patch: Patch) -> None:
    """A planted bug: what is prepared counts for the life that the check found, although that has ended by then."""
    right = LifeKeeper._begin

    async def begin(self: LifeKeeper, found: ServerLife, *given: Any) -> bool:
        with mock.patch.object(self._api, "describe_life", AsyncMock(return_value=found)):
            return await right(self, found, *given)

    patch.replace(LifeKeeper, "_begin", begin)


@pytest.mark.parametrize("bug", [None, _believes_what_it_found])
async def test_a_process_that_is_late_begins_no_further_life(
    world: World, monkeypatch: pytest.MonkeyPatch, patch: Patch, bug: Plant | None
) -> None:
    """It found the life named and not begun, and prepares one after another process has begun it."""
    if bug is not None:
        bug(patch)
    await (await world.process("primary")).keeper.check()
    await asyncio.to_thread(world.servers.add_standby, "standby")
    await asyncio.to_thread(world.servers.promote, "standby")
    first, late = await world.process("standby"), await world.process("standby")
    begin, prepare = first.metastore.life.begin_life, late.metastore.life.prepare_life
    has_found, has_begun = asyncio.Event(), asyncio.Event()
    checks: list[asyncio.Task[LifeVerdict]] = []

    async def begin_once_found(life: int, incarnation_id: uuid.UUID) -> bool:
        checks.append(asyncio.create_task(late.keeper.check()))
        await has_found.wait()
        begun = await begin(life, incarnation_id)
        has_begun.set()
        return begun

    async def prepare_once_begun(incarnation_id: uuid.UUID, spent: uuid.UUID | None = None) -> uuid.UUID:
        has_found.set()
        await has_begun.wait()
        return await prepare(incarnation_id, spent)

    monkeypatch.setattr(first.metastore.life, "begin_life", begin_once_found)
    monkeypatch.setattr(late.metastore.life, "prepare_life", prepare_once_begun)
    assert await first.keeper.check() is LifeVerdict.CURRENT
    await checks[0]
    named = await newest_life(world.bucket, None)
    assert named is not None
    assert (named.life == first.metastore.life.named_life == late.metastore.life.named_life == 1) is (bug is None)


async def test_a_writer_in_mid_call_ends_before_a_life_begins(world: World) -> None:
    """assert_life's lock: what named the old life is committed before, or refused."""
    process = await world.process("primary")
    await process.keeper.check()
    async with await psycopg.AsyncConnection.connect(world.servers.url("primary")) as slow:
        await slow.execute("SELECT assert_life(0)")
        beginning = asyncio.ensure_future(process.keeper.begin_anew("restored"))
        while (await (await slow.execute(b"SELECT count(*) FROM pg_locks WHERE NOT granted")).fetchone()) == (0,):
            assert not beginning.done()
            await asyncio.sleep(0.01)
        await slow.commit()
        assert await beginning == 1
