"""A commit that no synchronous standby has is no answer: a canceled wait is an unknown outcome, and what is answered
from such rows waits itself.

Invariant: what a client hears of as done is on the standby. Postgres ends a commit's wait when its session is canceled
(an operator, a client library) or when it restarts: the rows are there for all to see, and a promotion loses them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from headrace.config.settings import Settings
from headrace.metastore.api.commit import BulkProgress, FileStatus
from headrace.metastore.api.transactions import TransactionVerdict
from headrace.metastore.postgres import statement
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import OutcomeUnknownError
from tests.metastore.commit_scenes import Scene, appended, batch, file_of, open_scene, pairs
from tests.metastore.lost_standby import STANDBY, LostStandby
from tests.metastore.transactions.transaction_scenes import Producer, new_producer_id
from tests.patch import Patch

pytestmark = pytest.mark.own_database  # its sessions begin with settings of the database, and are counted


@dataclass
class World:
    """`scene` by connections that wait for the standby, `before` by others."""

    before: Scene
    scene: Scene
    lost: LostStandby


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str) -> AsyncIterator[World]:
    before = await open_scene(metastore)
    with LostStandby(metastore_url) as lost:
        store = await PostgresMetastore.open(metastore_url, Settings(metastore_pool_size=2))
        yield World(before, replace(before, store=store), lost)
        lost.end()
        await store.close()


def _ignore_the_warning(world: World, patch: Patch) -> None:
    patch.replace(statement, "STANDBY_WAIT", "")


def _answer_without_a_wait(world: World, patch: Patch) -> None:
    world.lost.run("CREATE OR REPLACE FUNCTION await_standbys() RETURNS void LANGUAGE sql AS ''")


PLANTED = {
    "a canceled wait is a success": _ignore_the_warning,
    "a repeated call waits for nothing": _answer_without_a_wait,
}


async def acknowledged_early(world: World) -> str | None:
    """Return what was acknowledged before the standby had it; None: nothing."""
    file = file_of([batch(world.scene.keys[0], 0)])
    first = asyncio.create_task(world.scene.commit(file))
    await world.lost.until_waiting(first)
    world.lost.cancel_waits()
    (outcome,) = await asyncio.gather(first, return_exceptions=True)
    if not isinstance(outcome, OutcomeUnknownError):
        return "a canceled wait is a success"
    assert "synchronous standby" in str(outcome)
    assert await world.before.read() == [(0, 4)], "it was committed, and is seen"
    again = asyncio.create_task(world.scene.commit(file))
    try:
        await world.lost.until_waiting(again)
    except AssertionError:
        return "a repeated call waits for nothing"
    world.lost.end()
    (answer,) = await again
    assert (answer.status, pairs(answer.batches)) == (FileStatus.COMMITTED, appended(0))
    return None


async def test_a_canceled_wait_leaves_the_outcome_unknown_and_its_repetition_waits(world: World) -> None:
    assert await acknowledged_early(world) is None


@pytest.mark.parametrize("bug", PLANTED)
async def test_planted_bugs_are_found(world: World, bug: str, patch: Patch) -> None:
    PLANTED[bug](world, patch)
    assert await acknowledged_early(world) == bug


async def test_a_call_in_a_separate_transaction_block_is_watched_too(world: World) -> None:
    call = asyncio.create_task(
        world.scene.store.cluster.grow_commit_shards(16, await world.before.store.cluster.metadata_head())
    )
    await world.lost.until_waiting(call)
    world.lost.cancel_waits()
    with pytest.raises(OutcomeUnknownError, match="synchronous standby"):
        await call


async def test_the_repeated_end_of_a_transaction_waits_for_the_standby(world: World) -> None:
    producer = Producer(world.before, "txn", bumps=False)
    await producer.init()
    await producer.add(0)
    await producer.send(0)
    assert await producer.end() is TransactionVerdict.DONE
    end = asyncio.create_task(
        world.scene.store.transactions.end_transaction(
            "txn", producer.who, commits=True, bumps=False, new_producer_id=new_producer_id()
        )
    )
    await world.lost.until_waiting(end)
    world.lost.end()
    assert (await end).verdict is TransactionVerdict.DONE


async def test_a_bulk_write_that_is_complete_already_waits_for_the_standby(world: World) -> None:
    chunk = asyncio.create_task(world.scene.store.commits.commit_bulk_chunk("writer", uuid.uuid4(), 0))
    await world.lost.until_waiting(chunk)
    world.lost.end()
    assert await chunk == BulkProgress(0, 0)


async def test_a_probe_names_the_standby_and_leaves_no_session_that_waits(world: World) -> None:
    store = world.scene.store
    await store.probe_commit()
    assert f"synchronous_standby_names='{STANDBY}' connected standbys: none" in str(store.refusal())
    assert world.lost.waiting() == 0
    commit = asyncio.create_task(world.scene.commit(file_of([batch(world.scene.keys[0], 0)])))
    await world.lost.until_waiting(commit)
    await store.probe_commit()
    assert STANDBY in str(store.refusal())
    assert world.lost.waiting() == 1
    world.lost.end()
    await commit
    node_id, epoch = world.scene.agent
    await store.cluster.heartbeat(node_id, epoch, metadata_offset=1, want_fence=False, session_timeout_ms=9_000)
    assert store.refusal() is None, "a heartbeat that is committed replaces the probe"
