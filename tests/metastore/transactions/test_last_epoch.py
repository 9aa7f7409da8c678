"""All epochs of a transactional id are used up: 32,767 fences its producer, and no transaction is open under it.

Such a row could not be ended: no other transaction was aborted in its round, and no life of the metastore began.
"""

from __future__ import annotations

import random

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.cluster.controller.completing_steps import EndingTimes, TransactionEnds
from headrace.metastore.api.read import NONE_OPEN
from headrace.metastore.api.transactions import EPOCH_MAX, ProducerEpoch, TransactionVerdict
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.postgres.migrate import MIGRATIONS
from headrace.metastore.postgres.sql_files import sql_files
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError
from headrace.storage.objects.memory import MemoryStore
from tests.manual_clock import ManualClock
from tests.metastore.commit_scenes import open_scene
from tests.metastore.sessions import Session, move_time, rows, session
from tests.metastore.sql_sources import plant
from tests.metastore.transactions.transaction_scenes import Producer, claimed_group, read

HEALING = "0044_open_transactions_have_epochs"
FENCING = EPOCH_MAX + 1
TIMES = EndingTimes(late_interval_ms=10, expired_interval_ms=10**9, expiration_ms=10**9)
LATE_SECONDS = 120


async def fenced(metastore: PostgresMetastore, url: str) -> Producer:
    """A producer that was fenced under its last epoch."""
    producer = Producer(await open_scene(metastore, 2), "used up")
    who = await producer.init()
    async with session(url) as raw:
        await raw.execute("UPDATE transactions SET producer_epoch = %s", [EPOCH_MAX])
        producer.who = ProducerEpoch(who.producer_id, EPOCH_MAX)
        await producer.send(0)
        await move_time(raw, LATE_SECONDS)
        (late,) = (await metastore.transactions.open_transactions(10)).late
        assert await metastore.transactions.time_out_transaction(late)
    producer.who = ProducerEpoch(who.producer_id, FENCING)
    return producer


async def opened_by_the_release_before(producer: Producer, url: str) -> None:
    """AddPartitionsToTxn and TxnOffsetCommit under the fencing epoch, and time in which it becomes late."""
    store, key = producer.scene.store, producer.scene.keys[1]
    epoch = await claimed_group(producer.scene, "g")
    async with session(url) as raw:
        await raw.execute("ALTER TABLE transactions DROP CONSTRAINT transactions_open_epoch")
        await raw.execute("UPDATE transactions SET state = 1, begun_at = wall_time(), groups = '{g}', version = 100")
        await raw.execute("INSERT INTO transaction_partitions VALUES (%s, %s)", [producer.who.producer_id, key])
        await raw.execute(
            "SELECT add_pending_offsets('used up', 100, 'g', %s, %s, '{7}', '{0}', ARRAY[''::bytea])", [epoch, [key]]
        )
        await move_time(raw, 2 * LATE_SECONDS)
    (found,) = await store.groups.fetch_offsets("g", None)
    assert found.is_pending


async def healed(url: str) -> None:
    """Heal the rows as a migration to this release does."""
    (text,) = (file.text for file in sql_files(MIGRATIONS) if file.name == HEALING)
    async with session(url) as raw:
        await raw.execute(text.encode())


async def ends_of(metastore: PostgresMetastore) -> int:
    """Late transactions after a round of the controller."""
    await TransactionEnds(metastore.transactions, lambda: TIMES, CollectorRegistry()).end_late()
    return (await metastore.transactions.open_transactions(10)).late_count


async def begins_a_life(metastore: PostgresMetastore) -> int:
    keeper = LifeKeeper(metastore.life, MemoryStore(ManualClock()), ManualClock(), random.Random(1))
    await keeper.check()
    return await keeper.begin_anew("restored")


@pytest.mark.requirement("X1")
async def test_no_transaction_begins_under_the_epoch_that_fences(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    producer = await fenced(metastore, metastore_url)
    assert await producer.add(1) is TransactionVerdict.USED_UP
    assert await producer.end(commits=False) is TransactionVerdict.USED_UP
    again = await producer.init()
    assert again.epoch == 0, "the transactional id goes on under a new producer id"
    assert await producer.send(1)
    assert await producer.end() is TransactionVerdict.DONE


async def test_an_agent_of_the_release_before_cannot_begin_one_either(
    metastore: PostgresMetastore, metastore_url: str, raw: Session
) -> None:
    producer = await fenced(metastore, metastore_url)
    (found,) = await metastore.transactions.find_transactions(["used up"])
    with pytest.raises(psycopg.errors.CheckViolation, match="transactions_open_epoch"):
        await raw.execute(
            "SELECT write_transaction('used up', %s, %s, 32767::smallint, 1::smallint, 1, -1, -1::smallint,"
            " '{}', '{}')",
            [found.version, producer.who.producer_id],
        )


@pytest.mark.requirement("X1")
async def test_a_migration_ends_those_that_are_open(
    metastore: PostgresMetastore, metastore_url: str, raw: Session
) -> None:
    producer = await fenced(metastore, metastore_url)
    await opened_by_the_release_before(producer, metastore_url)
    victim = Producer(producer.scene, "victim")
    await victim.init(timeout_ms=1)
    await victim.send(1)
    await healed(metastore_url)
    assert await metastore.groups.fetch_offsets("g", None) == []
    await move_time(raw, 3 * LATE_SECONDS)
    assert await rows(raw, "SELECT state, producer_epoch FROM transactions WHERE begun_at IS NULL") == [(5, FENCING)]
    assert await ends_of(metastore) == 0
    assert (await read(producer.scene, 1)).first_open_offset == NONE_OPEN
    assert await begins_a_life(metastore) == 1


async def test_one_that_is_open_stops_neither_the_others_nor_a_life(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    """Without the migration: the sums themselves do not overflow."""
    producer = await fenced(metastore, metastore_url)
    await opened_by_the_release_before(producer, metastore_url)
    assert await ends_of(metastore) == 0
    await opened_again(producer, metastore_url)
    assert await begins_a_life(metastore) == 1


async def opened_again(producer: Producer, url: str) -> None:
    async with session(url) as raw:
        await raw.execute("UPDATE transactions SET state = 1, begun_at = wall_time()")
        await raw.execute(
            "INSERT INTO transaction_partitions VALUES (%s, %s, 1)", [producer.who.producer_id, producer.scene.keys[1]]
        )


async def test_the_planted_bug_stops_a_life(metastore: PostgresMetastore, metastore_url: str) -> None:
    producer = await fenced(metastore, metastore_url)
    await opened_by_the_release_before(producer, metastore_url)
    epoch = "(least(v_open.producer_epoch, 32766) + 1)"
    plant(metastore_url, "forget_transactions", epoch, "(v_open.producer_epoch + 1)")
    with pytest.raises(InvalidError, match="smallint out of range"):
        await begins_a_life(metastore)


async def test_markers_of_the_last_epoch_are_found(metastore: PostgresMetastore, raw: Session) -> None:
    query = "SELECT markers_in_log(%s, '{0}', '{0}', '{1}', '{32767}', '{true}')"
    assert await rows(raw, query, "{00000000-0000-0000-0000-000000000001}") == [(False,)]
