"""A topic is deleted and created again under its name: producers continue where they ended, and no other producer may.

What every producer may do in general is in test_commit.py; the same rule on histories is in
tests/properties/test_recreation_machine.py, with real clients in tests/compat/test_recreated_topics.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.topics import PartitionGrowth
from headrace.metastore.api.transactions import TransactionVerdict
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import NotFoundError
from tests.metastore.commit_scenes import Scene, appended, batch, file_of, open_scene, pairs
from tests.metastore.sessions import Session, create, delete, move_time, new_topic, rows, set_for_cluster
from tests.metastore.test_commit import AGED, HOUR_MS
from tests.metastore.transactions.transaction_scenes import open_transactions

OUT_OF_ORDER = [(BatchOutcome.OUT_OF_ORDER, -1)]
PRODUCER = 1_000
DAY_SECONDS = 24 * 3_600

pytestmark = pytest.mark.requirement("W7")


@pytest.fixture
async def scene(metastore: PostgresMetastore) -> Scene:
    """A topic of two partitions; the producer has written sequences 0 to 9 to the first."""
    scene = await open_scene(metastore, partitions=2)
    assert await scene.outcomes(batch(scene.keys[0], 0), batch(scene.keys[0], 5)) == appended(0, 5)
    return scene


async def recreate(scene: Scene, partitions: int = 2, name: str | None = None) -> Scene:
    """The same, with a topic of that name in place of the deleted one."""
    await delete(scene.store, scene.topic.topic_id)
    return await created(scene, partitions, name)


async def created(scene: Scene, partitions: int = 2, name: str | None = None) -> Scene:
    topic = new_topic(name or scene.topic.name, partitions)
    found = (await create(scene.store, topic)).topics_by_id[topic.topic_id]
    keys = [key for index in range(partitions) if (key := found.key(index)) is not None]
    return Scene(scene.store, scene.agent, found, keys)


async def purge(scene: Scene) -> None:
    while await scene.store.housekeeping.purge_deleted_partitions(1):
        pass


@pytest.mark.parametrize("is_purged", [False, True])
async def test_a_producer_goes_on_with_its_next_sequence(scene: Scene, is_purged: bool) -> None:
    again = await recreate(scene)
    if is_purged:
        await purge(scene)
    (key, _) = again.keys
    assert await again.outcomes(batch(key, 10), batch(key, 15)) == appended(0, 5)
    assert await again.outcomes(batch(key, 10), batch(key, 20)) == [(BatchOutcome.DUPLICATE, 0), *appended(10)]


@pytest.mark.parametrize("sequence", [1, 9, 11, 15, 2**31 - 1])
async def test_no_other_sequence_is_accepted(scene: Scene, sequence: int) -> None:
    """Sequences of batches in flight arrive in any order: the one before must come first."""
    again = await recreate(scene)
    assert await again.outcomes(batch(again.keys[0], sequence)) == OUT_OF_ORDER
    assert await again.outcomes(batch(again.keys[0], 10)) == appended(0)


async def test_a_producer_may_begin_at_0(scene: Scene) -> None:
    """A client that forgot the topic, or a new epoch."""
    again = await recreate(scene)
    assert await again.outcomes(batch(again.keys[0], 0), batch(again.keys[0], 5)) == appended(0, 5)
    again = await recreate(again)
    assert await again.outcomes(batch(again.keys[0], 0, epoch=1)) == appended(0)


@pytest.mark.parametrize(
    ("other", "epoch", "index"),
    [(PRODUCER + 1, 0, 0), (PRODUCER, 1, 0), (PRODUCER, 0, 1)],
    ids=["another producer", "another epoch", "another partition"],
)
async def test_only_the_producer_that_wrote_there_goes_on(scene: Scene, other: int, epoch: int, index: int) -> None:
    again = await recreate(scene)
    assert await again.outcomes(batch(again.keys[index], 10, producer=other, epoch=epoch)) == OUT_OF_ORDER


async def test_a_topic_of_another_name_knows_nothing(scene: Scene) -> None:
    other = await recreate(scene, name="another")
    assert await other.outcomes(batch(other.keys[0], 10)) == OUT_OF_ORDER


async def test_a_live_topic_lends_its_producers_to_no_other(scene: Scene) -> None:
    other = await created(scene, name="another")
    assert await other.outcomes(batch(other.keys[0], 10)) == OUT_OF_ORDER


async def test_a_batch_that_is_sent_again_after_a_lost_answer_is_stored(scene: Scene) -> None:
    """The first copy was deleted with the topic. The sender repeats whole batches of the last five, in order."""
    again = await recreate(scene)
    (key, _) = again.keys
    assert await again.outcomes(batch(key, 5, records=4)) == OUT_OF_ORDER, "not a batch that was stored"
    assert await again.outcomes(batch(key, 5), batch(key, 10)) == appended(0, 5)


async def test_a_batch_that_is_remembered_no_more_is_not_stored_again(scene: Scene) -> None:
    """No client has more than five batches in flight."""
    await scene.outcomes(*(batch(scene.keys[0], sequence) for sequence in range(10, 35, 5)))
    again = await recreate(scene)
    assert await again.outcomes(batch(again.keys[0], 5)) == OUT_OF_ORDER
    assert await again.outcomes(batch(again.keys[0], 10)) == appended(0)


async def test_the_topic_is_deleted_again(scene: Scene) -> None:
    """This is what the producer wrote last counts, in whichever of the topics that was."""
    again = await recreate(scene)
    third = await recreate(await recreate(again))
    assert await third.outcomes(batch(third.keys[0], 10)) == appended(0)
    fourth = await recreate(third)
    assert await fourth.outcomes(batch(fourth.keys[0], 10, records=4)) == OUT_OF_ORDER
    assert await fourth.outcomes(batch(fourth.keys[0], 15)) == appended(0)


@pytest.mark.parametrize(("times", "expected"), [(10, appended(0)), (11, OUT_OF_ORDER)])
async def test_ten_deleted_topics_of_a_name_are_looked_at(
    scene: Scene, times: int, expected: Sequence[tuple[BatchOutcome, int]]
) -> None:
    for _ in range(times):
        scene = await recreate(scene)
    assert await scene.outcomes(batch(scene.keys[0], 10)) == expected


async def test_a_partition_that_is_added_later_goes_on_too(scene: Scene) -> None:
    await scene.outcomes(batch(scene.keys[1], 0))
    again = await recreate(scene, partitions=1)
    growth = PartitionGrowth(again.topic.topic_id, 1, 2)
    assert await again.store.topics.create_partitions(await again.store.cluster.metadata_head(), [growth])
    key = again.keys[0] + 1
    assert await again.outcomes(batch(key, 5)) == appended(0)


async def test_a_producer_that_was_silent_is_known_for_one_expiration(scene: Scene, raw: Session) -> None:
    """Counted from the deletion: the producer may have been silent for almost as long before."""
    await move_time(raw, 23 * 3_600)
    again = await recreate(scene)
    await purge(scene)
    await move_time(raw, 23 * 3_600 + DAY_SECONDS - 60)
    while await scene.store.housekeeping.expire_producer_state(10):
        pass
    late = file_of([batch(again.keys[0], 10)], age_ms=-47 * HOUR_MS)
    assert pairs((await again.commit(late))[0].batches) == appended(0)


async def test_after_the_expiration_no_producer_goes_on(scene: Scene, raw: Session) -> None:
    """Although no clean-up has come by."""
    again = await recreate(scene)
    await raw.execute("UPDATE deleted_topics SET deleted_at = deleted_at - interval '1441 minutes'")
    assert await again.outcomes(batch(again.keys[0], 10)) == OUT_OF_ORDER


async def test_deleted_topics_and_their_producers_are_forgotten(scene: Scene, raw: Session) -> None:
    await scene.outcomes(*(batch(scene.keys[1], 0, producer=producer) for producer in range(5)))
    again = await recreate(await recreate(scene))
    await purge(again)
    await move_time(raw, DAY_SECONDS - 60)
    assert await scene.store.housekeeping.expire_producer_state(10) == 0
    await move_time(raw, DAY_SECONDS + 3_660)
    assert sum([await scene.store.housekeeping.expire_producer_state(2) for _ in range(9)]) == 6 + 2, (
        "producers, then topics"
    )
    assert await rows(raw, "SELECT FROM deleted_topics UNION ALL SELECT FROM producer_state") == []


async def test_the_clusters_expiration_counts(scene: Scene, raw: Session) -> None:
    again = await recreate(scene)
    await set_for_cluster(scene.store, "producer.id.expiration.ms", HOUR_MS)
    await raw.execute("UPDATE deleted_topics SET deleted_at = deleted_at - interval '61 minutes'")
    assert await again.outcomes(batch(again.keys[0], 10)) == OUT_OF_ORDER
    await set_for_cluster(scene.store, "producer.id.expiration.ms", 2 * HOUR_MS)
    assert await again.outcomes(batch(again.keys[0], 10)) == appended(0)


async def test_an_old_producer_starts_at_0_on_a_new_topic(scene: Scene, raw: Session) -> None:
    """Decision 12 stays as it is, next to topics that were created again."""
    new = await recreate(scene, name="brand-new")
    await raw.execute("INSERT INTO producer_id_blocks VALUES (1, 9, clock_timestamp() - interval '2 days')")
    await raw.execute(AGED, [scene.keys[0]])
    assert await new.outcomes(batch(new.keys[0], 5, producer=9)) == OUT_OF_ORDER


async def test_a_transactional_producer_goes_on(metastore: PostgresMetastore) -> None:
    """It adds the new partition to its next transaction, and keeps its epoch and sequence (before KIP-890)."""
    producer = await open_transactions(metastore, 1, bumps=False)
    await producer.add(0)
    await producer.send(0)
    await producer.end()
    producer.scene = await recreate(producer.scene, partitions=1)
    assert await producer.add(0) is TransactionVerdict.DONE
    assert await producer.send(0) == appended(0)
    assert await producer.end() is TransactionVerdict.DONE


async def test_a_transaction_that_is_open_meanwhile_has_to_add_the_new_partition(metastore: PostgresMetastore) -> None:
    """Its first part went with the deleted topic."""
    producer = await open_transactions(metastore, 1, bumps=False)
    await producer.add(0)
    await producer.send(0)
    producer.scene = await recreate(producer.scene, partitions=1)
    assert await producer.send(0) == [(BatchOutcome.INVALID_TXN_STATE, -1)]
    await producer.add(0)
    assert await producer.send(0) == appended(0)
    assert await producer.end() is TransactionVerdict.DONE


async def test_a_deleted_partition_is_not_added_to_a_transaction(metastore: PostgresMetastore) -> None:
    """By an agent that does not know yet: its client would have to abort a transaction without its new partition."""
    producer = await open_transactions(metastore, 1, bumps=False)
    again = await recreate(producer.scene, partitions=1)
    with pytest.raises(NotFoundError):
        await producer.add(0)
    producer.scene = again
    await producer.add(0)
    assert await producer.send(0) == appended(0)
