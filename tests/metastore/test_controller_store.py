"""The controller's lease on the database's clock, and that a stale epoch can do nothing."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest

from headrace.metastore.api.cluster import StoredSnapshot
from headrace.metastore.api.controller import ControllerLease, SnapshotState
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.metastore.log.snapshot import encode_snapshot, load_image, load_snapshot
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError, InvalidError, TruncatedError
from tests.metastore.sessions import Session, beat, create, join, move_time, new_topic, session, waiting

LEASE_MS = 3_000_000
"""So long that the time which the test itself takes is nothing to it."""
FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)
PassTime = Callable[[float], Awaitable[None]]


@pytest.fixture
async def pass_time(raw: Session) -> PassTime:
    """Moves the metastore's clock on."""
    ahead = 0.0

    async def forward(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds
        await move_time(raw, ahead)

    return forward


async def _hold(store: PostgresMetastore, controller_id: int, incarnation: uuid.UUID) -> ControllerLease:
    return await store.controller.hold_controller_lease(controller_id, incarnation, LEASE_MS)


def _who(lease: ControllerLease) -> ControllerLease:
    """Return the holder without what else the answer says."""
    return ControllerLease(*lease[:4])


@pytest.mark.requirement("C15")
async def test_a_standby_takes_over_when_the_lease_ran_out_and_the_old_one_may_do_nothing(
    metastore: PostgresMetastore, pass_time: PassTime
) -> None:
    assert await metastore.controller.describe_controller() is None
    first = await _hold(metastore, 1, FIRST)
    assert _who(first) == ControllerLease(1, 1, is_own=True, lease_ms=LEASE_MS)
    standby = await _hold(metastore, 2, SECOND)
    assert _who(standby) == ControllerLease(1, 1, is_own=False, lease_ms=LEASE_MS)
    assert LEASE_MS - 1_000 < standby.remaining_ms <= LEASE_MS
    await pass_time(2_000)
    assert await _hold(metastore, 1, FIRST) == first, "renewed, under the same epoch"
    await pass_time(2_000)
    assert not (await _hold(metastore, 2, SECOND)).is_own, "2000 s after it was renewed"
    assert await metastore.controller.describe_controller() == ControllerLease(1, 1, is_own=False)

    await pass_time(1_500)
    assert await metastore.controller.describe_controller() is None
    second = await _hold(metastore, 2, SECOND)
    assert _who(second) == ControllerLease(2, 2, is_own=True, lease_ms=LEASE_MS)
    assert _who(await _hold(metastore, 1, FIRST)) == _who(second)._replace(is_own=False), "SIGSTOP, take-over, SIGCONT"

    head = await metastore.cluster.metadata_head()
    image = await load_image(metastore.cluster)
    level = FeatureLevelRecord(name="f", min_feature_level=1, max_feature_level=1)
    stale = first.controller_epoch
    for action in (
        metastore.controller.fence_silent_agents(stale, session_timeout_ms=1),
        metastore.cluster.append_records(head, [level], controller_epoch=stale),
        metastore.controller.save_snapshot(stale, StoredSnapshot(image.offset, encode_snapshot(image))),
        metastore.controller.truncate_metadata(stale, 10),
    ):
        with pytest.raises(FencedError, match="controller_epoch=1"):
            await action
    await metastore.controller.resign_controller(stale)
    assert (await _hold(metastore, 1, FIRST)).controller_id == 2
    assert await metastore.cluster.metadata_head() == head
    assert await metastore.cluster.newest_snapshot() is None


@pytest.mark.requirement("C15")
async def test_of_many_standbys_one_takes_over(metastore: PostgresMetastore, pass_time: PassTime) -> None:
    await _hold(metastore, 9, uuid.UUID(int=9))
    await pass_time(4_000)
    answers = await asyncio.gather(*(_hold(metastore, n, uuid.UUID(int=n)) for n in range(1, 5)))
    assert [answer.is_own for answer in answers].count(True) == 1
    assert len({answer[:2] for answer in answers}) == 1, "all name the same one"
    assert answers[0].controller_epoch == 2


async def test_who_resigns_is_replaced_at_once(metastore: PostgresMetastore) -> None:
    first = await _hold(metastore, 1, FIRST)
    await metastore.controller.resign_controller(first.controller_epoch)
    assert await metastore.controller.describe_controller() is None
    assert _who(await _hold(metastore, 2, SECOND)) == ControllerLease(2, 2, is_own=True, lease_ms=LEASE_MS)


@pytest.mark.requirement("C15")
@pytest.mark.parametrize("taken_over", [False, True], ids=["renewed", "taken over"])
async def test_a_lease_is_renewed_or_taken_over_while_a_snapshot_is_being_stored(
    metastore: PostgresMetastore, metastore_url: str, pass_time: PassTime, taken_over: bool
) -> None:
    """The insert waits for another session that stores the same key, as a large one waits for its disk."""
    first = await _hold(metastore, 1, FIRST)
    image = await load_image(metastore.cluster)
    snapshot = StoredSnapshot(image.offset, encode_snapshot(image))
    async with session(metastore_url) as gate, session(metastore_url) as observer:
        async with gate.transaction(force_rollback=True):
            await gate.execute(
                "INSERT INTO metadata_snapshots (end_offset, data, created_at) VALUES (%s, '', now())",
                [snapshot.end_offset],
            )
            saving = asyncio.create_task(metastore.controller.save_snapshot(first.controller_epoch, snapshot))
            await waiting(observer, 1)
            if taken_over:
                await pass_time(4_000)
                assert (await _hold(metastore, 2, SECOND)).is_own
            else:
                assert await _hold(metastore, 1, FIRST) == first
            assert not saving.done()
        if taken_over:
            with pytest.raises(FencedError, match="controller_epoch=1"):
                await saving
            assert await metastore.cluster.newest_snapshot() is None, "an old controller's is not kept"
        else:
            await saving
            assert await metastore.cluster.newest_snapshot() == snapshot


@pytest.mark.requirement("C15")
async def test_a_take_over_waits_for_an_action_and_the_action_that_comes_after_it_is_refused(
    metastore: PostgresMetastore, metastore_url: str, pass_time: PassTime
) -> None:
    """The epoch's check holds until the statement ends: no action of the old one lands after a take-over."""
    first = await _hold(metastore, 1, FIRST)
    await pass_time(4_000)
    async with session(metastore_url) as gate, session(metastore_url) as observer:
        async with gate.transaction():
            await gate.execute("SELECT lock_metadata_head()")
            level = FeatureLevelRecord(name="f", min_feature_level=1, max_feature_level=1)
            head = await metastore.cluster.metadata_head()
            acting = asyncio.create_task(
                metastore.cluster.append_records(head, [level], controller_epoch=first.controller_epoch)
            )
            await waiting(observer, 1)
            taking_over = asyncio.create_task(_hold(metastore, 2, SECOND))
            await waiting(observer, 2)
            assert not taking_over.done()
        assert await acting
        assert (await taking_over).is_own
    with pytest.raises(FencedError):
        await metastore.cluster.append_records(head + 1, [level], controller_epoch=first.controller_epoch)


async def test_heartbeats_name_the_active_controller(metastore: PostgresMetastore) -> None:
    agent = await join(metastore)
    assert (await beat(metastore, agent)).controller_id == -1
    await _hold(metastore, 7, FIRST)
    assert (await beat(metastore, agent)).controller_id == 7


async def _snapshot(store: PostgresMetastore, epoch: int) -> StoredSnapshot:
    image = await load_image(store.cluster)
    made = StoredSnapshot(image.offset, encode_snapshot(image))
    await store.controller.save_snapshot(epoch, made)
    return made


@pytest.mark.requirement("C3")
async def test_the_log_goes_back_to_the_older_of_two_snapshots_and_says_so(metastore: PostgresMetastore) -> None:
    epoch = (await _hold(metastore, 1, FIRST)).controller_epoch
    await create(metastore, new_topic("a", 5))
    assert await metastore.cluster.newest_snapshot() is None
    first = await _snapshot(metastore, epoch)
    assert await metastore.controller.truncate_metadata(epoch, 100) == 0, "one snapshot may yet prove unreadable"
    await create(metastore, new_topic("b", 3))
    second = await _snapshot(metastore, epoch)
    await metastore.controller.save_snapshot(epoch, second)
    assert await metastore.cluster.newest_snapshot() == second

    whole = await metastore.cluster.read_metadata(0)
    assert await metastore.controller.truncate_metadata(epoch, 4) == 4
    assert await metastore.controller.truncate_metadata(epoch, 100) == first.end_offset - 1 - 4
    assert await metastore.controller.truncate_metadata(epoch, 100) == 0
    assert await metastore.cluster.metadata_log_start() == first.end_offset - 1
    with pytest.raises(TruncatedError, match=f"asked=0 kept={first.end_offset - 1}"):
        await metastore.cluster.read_metadata(0)
    assert await metastore.cluster.read_metadata(first.end_offset - 1) == whole[first.end_offset - 1 :]
    assert await metastore.cluster.read_metadata(await metastore.cluster.metadata_head()) == []
    assert set((await load_image(metastore.cluster)).topics_by_name) == {"a", "b"}

    await create(metastore, new_topic("c"))
    await _snapshot(metastore, epoch)
    await metastore.controller.truncate_metadata(epoch, 100)
    assert await metastore.cluster.metadata_log_start() == second.end_offset - 1, "a third one drops the first"
    image = await load_image(metastore.cluster)
    assert set(image.topics_by_name) == {"a", "b", "c"}
    assert image.offset == await metastore.cluster.metadata_head()
    assert load_snapshot(second.data).offset == second.end_offset


async def test_what_a_snapshot_leaves_is_known(metastore: PostgresMetastore, pass_time: PassTime) -> None:
    epoch = (await _hold(metastore, 1, FIRST)).controller_epoch
    await create(metastore, new_topic("a", 5))
    whole = await metastore.cluster.read_metadata(0)
    state = await metastore.controller.snapshot_state()
    assert state[:1] + state[2:] == (0, len(whole), sum(map(len, whole)))
    await pass_time(100)
    made = await _snapshot(metastore, epoch)
    await pass_time(60)
    end, age_ms, records, size = await metastore.controller.snapshot_state()
    assert (end, records, size) == (made.end_offset, 0, 0)
    assert 60_000 <= age_ms < 160_000, "since the snapshot, not since the beginning"
    assert isinstance(state, SnapshotState)


async def test_a_snapshot_of_what_is_not_in_the_log_is_refused(metastore: PostgresMetastore) -> None:
    epoch = (await _hold(metastore, 1, FIRST)).controller_epoch
    with pytest.raises(InvalidError, match="end_offset=99"):
        await metastore.controller.save_snapshot(epoch, StoredSnapshot(99, b""))
