"""Transactions on real Postgres, one rule at a time; test_interleavings.py has them at once."""

from __future__ import annotations

import pytest

from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.read import NONE_OPEN, ExtentQuery, FeedKind
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.api.transactions import (
    EPOCH_MAX,
    NO_PRODUCER,
    OpenTransactions,
    ProducerEpoch,
    TransactionState,
    TransactionVerdict,
)
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.transaction_markers import Marker
from headrace.storage.errors import FencedError
from tests.metastore.commit_scenes import appended, batch
from tests.metastore.sessions import Session, delete, join, move_time, rows, set_for_cluster
from tests.metastore.transactions.transaction_scenes import (
    RECORDS,
    TIMEOUT_MS,
    Producer,
    aborted,
    aborts,
    claimed_group,
    log_of,
    new_producer_id,
    open_transactions,
    position,
    read,
)

DONE, FENCED = TransactionVerdict.DONE, TransactionVerdict.FENCED
INVALID, UNKNOWN = TransactionVerdict.INVALID_STATE, TransactionVerdict.UNKNOWN_PRODUCER
REFUSED = [(BatchOutcome.INVALID_TXN_STATE, -1)]
ZOMBIE = [(BatchOutcome.PRODUCER_FENCED, -1)]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("bumps", [True, False])
async def test_an_end_is_a_marker_in_each_partition_with_data(
    metastore: PostgresMetastore, bumps: bool, commits: bool
) -> None:
    producer = await open_transactions(metastore, 3, bumps=bumps)
    begun = producer.who
    assert bumps or await producer.add(0, 1, 2) is DONE
    assert await producer.send(0, 1) == appended(0, 0)
    assert await producer.send(0) == appended(RECORDS)
    assert (await read(producer.scene)).first_open_offset == 0
    assert await producer.end(commits=commits) is DONE
    marker = Marker(begun.producer_id, begun.epoch + bumps, commits)
    scene = producer.scene
    assert [await log_of(scene, p) for p in range(3)] == [["data", "data", marker], ["data", marker], []]
    for partition, end in ((0, 2 * RECORDS), (1, RECORDS)):
        found = await read(scene, partition)
        assert (found.first_open_offset, found.high_watermark) == (NONE_OPEN, end + 1)
        assert aborts(found) == ([] if commits else [(begun.producer_id, 0, end)])
    assert producer.who == ProducerEpoch(begun.producer_id, begun.epoch + bumps)
    assert await producer.send(0) == (appended(2 * RECORDS + 1) if bumps else REFUSED)


async def test_the_feed_says_with_each_append_what_is_open_and_what_was_aborted(metastore: PostgresMetastore) -> None:
    producer = await open_transactions(metastore, 1)
    (key,), shard = producer.scene.keys, producer.scene.shard(0)
    heads = (await metastore.index.poll_feed({})).heads
    await producer.send(0)
    await producer.scene.outcomes(batch(key))
    await producer.send(0)
    zombie = producer.who
    await producer.end(commits=False)
    found = [row for row in (await metastore.index.poll_feed(heads)).rows if row.shard == shard]
    assert [row.kind for row in found] == [FeedKind.TRANSACTION, FeedKind.COMMIT, *[FeedKind.TRANSACTION] * 2]
    assert [row.first_open_offsets for row in found] == [{key: 0}, {}, {key: 0}, {key: NONE_OPEN}]
    assert [row.aborted for row in found] == [[], [], [], [aborted(key, zombie.producer_id, 0, 3 * RECORDS)]]
    assert [row.extents for row in found] == [[extent] for extent in (await read(producer.scene)).extents]


async def test_the_stable_offset_is_the_lowest_of_the_open_transactions(metastore: PostgresMetastore) -> None:
    first = await open_transactions(metastore, 1)
    scene = first.scene
    second = Producer(scene, "other")
    await second.init()
    await scene.outcomes(batch(scene.keys[0]))
    await first.send(0)
    await second.send(0)
    assert (await read(scene)).first_open_offset == RECORDS
    await first.end(commits=False)
    assert (await read(scene)).first_open_offset == 2 * RECORDS
    await scene.outcomes(batch(scene.keys[0]))
    await second.end()
    assert (await read(scene)).first_open_offset == NONE_OPEN


async def test_a_reader_hears_of_those_aborted_transactions_that_it_meets(metastore: PostgresMetastore) -> None:
    """Also of one that ended far behind what it reads, and of none before it."""
    long = await open_transactions(metastore, 1)
    scene = long.scene
    short = Producer(scene, "short")
    await short.init()
    ends = []
    await long.send(0)
    for _ in range(4):
        await short.send(0)
        ends.append((await read(scene)).high_watermark)
        await short.end(commits=False)
    at_long = (await read(scene)).high_watermark
    loser = long.who.producer_id
    await long.end(commits=False)
    everything = [(short.who.producer_id, end - RECORDS, end) for end in ends] + [(loser, 0, at_long)]
    assert aborts(await read(scene)) == everything
    assert aborts(await read(scene, offset=ends[1])) == everything[1:]
    assert aborts(await read(scene, offset=ends[1] + 1)) == everything[2:]
    (first,) = await metastore.index.find_extents([ExtentQuery(scene.keys[0], 0, 1)])
    assert len(first.extents) == 1
    assert aborts(first) == [(loser, 0, at_long)]


async def test_only_the_batches_of_the_open_transaction_are_appended(metastore: PostgresMetastore) -> None:
    producer = await open_transactions(metastore, 2, bumps=False)
    assert await producer.send(0) == REFUSED
    await producer.add(0)
    assert await producer.send(0, 1) == [*appended(0), *REFUSED]
    assert await producer.send(0, transactional=False) == REFUSED
    producer.sequences[0] = 0
    assert await producer.send(0) == [(BatchOutcome.DUPLICATE, 0)]
    await producer.end()
    producer.sequences[0] = 0
    assert await producer.send(0) == [(BatchOutcome.DUPLICATE, 0)], "duplicates come first"
    producer.sequences[0] = RECORDS
    assert await producer.send(0) == REFUSED
    assert await producer.send(0, transactional=False) == appended(RECORDS + 1)


async def test_a_zombie_is_fenced_at_the_commit_and_by_each_request(metastore: PostgresMetastore) -> None:
    zombie = await open_transactions(metastore, 2)
    scene = zombie.scene
    await zombie.send(0)
    heir = Producer(scene, "copy")
    await heir.init()
    assert await log_of(scene) == ["data", Marker(zombie.who.producer_id, zombie.who.epoch + 1, False)]
    assert await zombie.send(0) == ZOMBIE
    assert await zombie.send(1) == ZOMBIE
    assert await zombie.add(1) is FENCED
    assert await zombie.end() is FENCED
    assert await zombie.end(commits=False) is FENCED
    assert await heir.send(0) == appended(RECORDS + 1)
    assert await heir.end() is DONE
    stranger = Producer(scene, "foreign", who=ProducerEpoch(77, 0))
    assert await stranger.send(0) == [(BatchOutcome.UNKNOWN_PRODUCER, -1)]
    assert await stranger.end() is UNKNOWN


async def test_a_repeated_end_gets_the_first_answer(metastore: PostgresMetastore) -> None:
    producer = await open_transactions(metastore, 1)
    before = producer.who
    await producer.send(0)
    await producer.end()
    again = await producer.ask_end(before, commits=True)
    assert (again.verdict, again.producer) == (DONE, producer.who)
    assert (await producer.ask_end(before, commits=False)).verdict is INVALID
    assert await log_of(producer.scene) == ["data", Marker(before.producer_id, before.epoch + 1, True)]
    await producer.send(0)
    assert (await producer.ask_end(before, commits=True)).verdict is FENCED, "another transaction is open"


async def test_epochs_that_are_used_up_bring_another_producer_id(metastore: PostgresMetastore) -> None:
    producer = await open_transactions(metastore, 1)
    async with metastore.pool.connection() as connection:
        await connection.execute("UPDATE transactions SET producer_epoch = %s", (EPOCH_MAX,))
    last = producer.who._replace(epoch=EPOCH_MAX)
    producer.who = last
    await producer.send(0)
    await producer.end()
    assert producer.who.epoch == 0
    assert producer.who.producer_id != last.producer_id
    assert await log_of(producer.scene) == ["data", Marker(last.producer_id, EPOCH_MAX + 1, True)]
    assert (await producer.ask_end(last, commits=True)).producer == producer.who
    assert await producer.send(0) == appended(RECORDS + 1)


@pytest.mark.parametrize("commits", [True, False])
async def test_offsets_of_a_group_are_stored_with_the_end(metastore: PostgresMetastore, commits: bool) -> None:
    producer = await open_transactions(metastore, 2)
    scene, (a, b) = producer.scene, producer.scene.keys
    epoch = await claimed_group(scene, "g")
    await metastore.groups.commit_offsets("g", epoch, [position(a, 1)])
    answer = await metastore.transactions.add_pending_offsets(
        "copy", producer.who, "g", epoch, [position(a, 7), position(b, 8), position(999, 9)], adds_group=True
    )
    assert answer == (DONE, [True, True, False])
    found = await metastore.groups.fetch_offsets("g", None)
    assert [(o.partition_key, o.offset, o.is_pending) for o in found] == [(a, 1, True), (b, -1, True)]
    await producer.end(commits=commits)
    found = await metastore.groups.fetch_offsets("g", None)
    stored = [(a, 7, False), (b, 8, False)] if commits else [(a, 1, False)]
    assert [(o.partition_key, o.offset, o.is_pending) for o in found] == stored


async def test_offsets_need_the_group_in_the_transaction_and_its_coordinator(metastore: PostgresMetastore) -> None:
    producer = await open_transactions(metastore, 1, bumps=False)
    scene = producer.scene
    epoch, offsets = await claimed_group(scene, "g"), [position(scene.keys[0], 7)]

    async def add(coordinator_epoch: int = epoch, who: ProducerEpoch = producer.who) -> TransactionVerdict:
        answer = await metastore.transactions.add_pending_offsets(
            "copy", who, "g", coordinator_epoch, offsets, adds_group=False
        )
        return answer.verdict

    assert await add() is INVALID
    await metastore.transactions.add_to_transaction("copy", producer.who, groups={"g"})
    assert await add() is DONE
    assert await add(who=producer.who._replace(epoch=9)) is FENCED
    with pytest.raises(FencedError):
        await add(coordinator_epoch=epoch - 1)


async def test_a_late_transaction_is_aborted_once_and_its_producer_fenced(
    metastore: PostgresMetastore, raw: Session
) -> None:
    producer = await open_transactions(metastore, 1)
    await producer.send(0)
    assert (await metastore.transactions.open_transactions(10))[2:] == (0, [])
    await move_time(raw, TIMEOUT_MS / 1000 + 1)
    count, oldest_ms, late_count, (late,) = await metastore.transactions.open_transactions(10)
    assert (count, late_count) == (1, 1)
    assert oldest_ms > TIMEOUT_MS
    assert (await metastore.transactions.open_transactions(0)).late == [], "no more than what is asked for"
    assert await metastore.transactions.time_out_transaction(late)
    assert not await metastore.transactions.time_out_transaction(late)
    assert await metastore.transactions.open_transactions(10) == OpenTransactions(0, 0, 0, [])
    assert await log_of(producer.scene) == ["data", Marker(producer.who.producer_id, producer.who.epoch + 1, False)]
    assert await producer.end() is FENCED
    assert await producer.send(0) == ZOMBIE
    await producer.init()
    assert await producer.send(0) == appended(RECORDS + 1)


async def test_a_transaction_survives_its_deleted_topic(metastore: PostgresMetastore, raw: Session) -> None:
    producer = await open_transactions(metastore, 1)
    await producer.send(0)
    await delete(metastore, producer.scene.topic.topic_id)
    assert await producer.end() is DONE
    while await metastore.housekeeping.purge_deleted_partitions(100):
        pass
    for table in ("extents", "transaction_partitions", "aborted_transactions", "pending_offsets"):
        assert await rows(raw, f"SELECT count(*) FROM {table}") == [(0,)], table


async def test_a_log_start_takes_aborted_transactions_along(metastore: PostgresMetastore, raw: Session) -> None:
    """At once, if nothing is kept for a restore."""
    await set_for_cluster(metastore, "file.delete.delay.ms", 0)
    producer = await open_transactions(metastore, 1)
    for _ in range(2):
        await producer.send(0)
        await producer.end(commits=False)
    (key,) = producer.scene.keys
    await metastore.retention.move_log_starts([LogStartTarget(key, RECORDS + 1)], max_extents=100)
    kept = await rows(raw, "SELECT first_offset FROM aborted_transactions")
    assert kept == [(RECORDS + 1,)]


async def test_records_of_an_open_transaction_are_deleted(metastore: PostgresMetastore, raw: Session) -> None:
    """DeleteRecords up to the high watermark: nothing waits, and its rows go with the log start, unless they are kept
    for a restore.
    """
    await set_for_cluster(metastore, "file.delete.delay.ms", 0)
    producer = await open_transactions(metastore, 1)
    scene, (key,) = producer.scene, producer.scene.keys
    await producer.send(0)
    await metastore.retention.move_log_starts([LogStartTarget(key, RECORDS)], max_extents=100)
    assert (await read(scene)).last_stable_offset == RECORDS
    assert await producer.send(0) == appended(RECORDS)
    assert (await read(scene)).last_stable_offset == RECORDS, "never below the log start"
    assert await producer.end(commits=False) is DONE
    found = await read(scene)
    assert found.last_stable_offset == found.high_watermark == 2 * RECORDS + 1
    (ended,) = await metastore.outcomes.ended_transactions(10)
    assert ended.outcome is not None
    assert await metastore.outcomes.markers_in_log([ended.outcome]) == [True]
    await metastore.retention.move_log_starts([LogStartTarget(key, found.high_watermark)], max_extents=100)
    assert await metastore.outcomes.markers_in_log([ended.outcome]) == [False]
    for table in ("aborted_transactions", "transaction_partitions", "extents"):
        assert await rows(raw, f"SELECT count(*) FROM {table}") == [(0,)], table


async def test_what_is_known_of_a_transaction(metastore: PostgresMetastore) -> None:
    producer = await open_transactions(metastore, 2)
    await producer.send(1)
    (found,) = await metastore.transactions.find_transactions(["copy", "unknown"])
    assert (found.producer, found.state, found.timeout_ms) == (producer.who, TransactionState.ONGOING, TIMEOUT_MS)
    assert found.partition_keys == {producer.scene.keys[1]}
    assert found.begun_ms > 0
    await producer.end()
    (found,) = await metastore.transactions.find_transactions()
    assert (found.state, found.partition_keys, found.begun_ms) == (TransactionState.COMPLETE_COMMIT, frozenset(), -1)


async def test_a_producer_that_keeps_its_id_recovers(metastore: PostgresMetastore) -> None:
    """KIP-360, also if the first answer is lost."""
    producer = await open_transactions(metastore, 1)
    before = producer.who
    await producer.send(0)
    after = await producer.init(before)
    assert after == before._replace(epoch=before.epoch + 1)
    again = await metastore.transactions.init_producer("copy", TIMEOUT_MS, before, new_producer_id())
    assert again.producer == after
    other = await metastore.transactions.init_producer("copy", TIMEOUT_MS, NO_PRODUCER, new_producer_id())
    assert other.producer.epoch > after.epoch
    assert (await metastore.transactions.init_producer("copy", TIMEOUT_MS, before, new_producer_id())).verdict is FENCED


async def test_another_agent_may_commit_the_next_batch(metastore: PostgresMetastore) -> None:
    producer = await open_transactions(metastore, 1)
    await producer.send(0)
    producer.scene.agent = await join(metastore)
    assert await producer.send(0) == appended(RECORDS)


async def test_unused_transactional_ids_are_forgotten(metastore: PostgresMetastore, raw: Session) -> None:
    """Never one with an open transaction, and no more than asked for."""
    idle = await open_transactions(metastore, 1)
    scene = idle.scene
    await idle.send(0)
    await idle.end()
    others = [Producer(scene, f"idle-{number}") for number in range(3)]
    busy = Producer(scene, "busy")
    for producer in (*others, busy):
        await producer.init()
    await busy.send(0)
    assert await metastore.transactions.expire_transactional_ids(1_000, 10) == 0
    await move_time(raw, 2)
    assert [await metastore.transactions.expire_transactional_ids(1_000, 3) for _ in range(3)] == [3, 1, 0]
    assert [found.transactional_id for found in await metastore.transactions.find_transactions()] == ["busy"]
    assert await idle.send(0) == [(BatchOutcome.UNKNOWN_PRODUCER, -1)]
    assert await busy.end() is DONE


async def test_a_tool_aborts_what_is_open_and_fences_its_producer(metastore: PostgresMetastore) -> None:
    producer = await open_transactions(metastore, 1)
    name, begun = producer.transactional_id, producer.who
    assert await metastore.transactions.abort_transaction(name, begun) is INVALID
    await producer.send(0)
    assert (
        await metastore.transactions.abort_transaction(name, ProducerEpoch(begun.producer_id, begun.epoch + 1))
        is FENCED
    )
    assert await metastore.transactions.abort_transaction("unknown", begun) is UNKNOWN
    ((status,),) = await metastore.reports.describe_producers(producer.scene.keys)
    assert (status.producer_id, status.transaction_start) == (begun.producer_id, 0)
    assert await metastore.transactions.abort_transaction(name, begun) is DONE
    ((status,),) = await metastore.reports.describe_producers(producer.scene.keys)
    assert (status.producer_id, status.transaction_start) == (begun.producer_id, -1)
    assert await log_of(producer.scene) == ["data", Marker(begun.producer_id, begun.epoch + 1, False)]
    assert await producer.end() is FENCED


async def test_a_released_group_stays_for_its_pending_offsets(metastore: PostgresMetastore) -> None:
    """A group without members and offsets is forgotten when its agent stops. Then the end would lose these."""
    producer = await open_transactions(metastore, 1)
    scene = producer.scene
    claim = await metastore.groups.claim_group("g", *scene.agent)
    assert claim is not None
    answer = await metastore.transactions.add_pending_offsets(
        producer.transactional_id,
        producer.who,
        "g",
        claim.coordinator_epoch,
        [position(scene.keys[0], 7)],
        adds_group=True,
    )
    assert (answer.verdict, answer.stored) == (DONE, [True])
    await metastore.groups.release_groups({"g": claim.coordinator_epoch})
    assert await producer.end() is DONE
    (committed,) = await metastore.groups.fetch_offsets("g", [scene.keys[0]])
    assert (committed.offset, committed.is_pending) == (7, False)
