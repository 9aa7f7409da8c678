"""What a commit answers, one rule at a time; test_commit_machine.py has all of them together."""

from __future__ import annotations

import pytest

from headrace.agent.transactions.producer_ids import ProducerIds
from headrace.metastore.api.commit import BatchOutcome, FileCommit, FileStatus
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError
from tests.manual_clock import ManualClock
from tests.metastore.commit_scenes import (
    BATCH_BYTES,
    Scene,
    appended,
    batch,
    condemn,
    file_of,
    open_scene,
    pairs,
)
from tests.metastore.sessions import Session, delete, join, move_time, rows

APPENDED, DUPLICATE, OUT_OF_ORDER = BatchOutcome.APPENDED, BatchOutcome.DUPLICATE, BatchOutcome.OUT_OF_ORDER
DUPLICATE_SEQUENCE = BatchOutcome.DUPLICATE_SEQUENCE
HOUR_MS = 3_600_000
AGED = "UPDATE partitions SET created_at = created_at - interval '4 days' WHERE partition_key = %s"


@pytest.fixture
async def scene(metastore: PostgresMetastore) -> Scene:
    """A topic of three partitions."""
    return await open_scene(metastore, partitions=3)


@pytest.mark.requirement("W4")
async def test_order_is_that_of_commits_not_of_births(scene: Scene) -> None:
    older, newer = file_of([batch(scene.keys[0])], age_ms=60_000), file_of([batch(scene.keys[0], records=2)])
    (first,) = await scene.commit(newer)
    (second,) = await scene.commit(older)
    assert (pairs(first.batches), pairs(second.batches)) == (appended(0), appended(2))


async def test_files_of_one_call_follow_each_other_in_each_partition(scene: Scene) -> None:
    a, b, _ = scene.keys
    answers = await scene.commit(
        file_of([batch(b, records=2), batch(a, records=3), batch(b, records=4)]),
        file_of([batch(a, records=1), batch(b, records=1)]),
    )
    assert [pairs(answer.batches) for answer in answers] == [appended(0, 0, 2), appended(3, 6)]


async def test_neighbours_become_one_extent_and_a_gap_two(scene: Scene) -> None:
    a, b, _ = scene.keys
    await scene.commit(file_of([batch(a), batch(a), batch(b), batch(a)]))
    (found,) = await scene.store.index.find_extents([ExtentQuery(a, 0, 1 << 20)])
    assert [(e.base_offset, e.last_offset, e.position, e.length) for e in found.extents] == [
        (0, 9, 0, 2 * BATCH_BYTES),
        (10, 14, 3 * BATCH_BYTES, BATCH_BYTES),
    ]


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("back", range(1, 8))
async def test_the_last_five_batches_are_known_again(scene: Scene, back: int) -> None:
    key = scene.keys[0]
    assert await scene.outcomes(*(batch(key, sequence) for sequence in range(0, 40, 5))) == appended(*range(0, 40, 5))
    again = 40 - back * 5
    expected = (DUPLICATE, again) if back <= 5 else (DUPLICATE_SEQUENCE, -1)
    assert await scene.outcomes(batch(key, again)) == [expected]


@pytest.mark.requirement("W7")
async def test_a_retry_that_many_batches_overtook_is_stored_and_says_so(scene: Scene) -> None:
    """Also if its sequences come in other batches, or its topic has grown since."""
    key = scene.keys[0]
    await scene.outcomes(*(batch(key, sequence) for sequence in range(0, 50, 5)))
    for again in (batch(key, 0), batch(key, 3, records=9), batch(key, 0, partition_count=9), batch(key, 48, records=2)):
        assert await scene.outcomes(again) == [(DUPLICATE_SEQUENCE, -1)]
    assert await scene.outcomes(batch(key, 48)) == [(OUT_OF_ORDER, -1)], "its end is not stored"
    assert await scene.outcomes(batch(key, 50), batch(key, 0, epoch=1), batch(key, 5)) == [
        *appended(50, 55),
        (BatchOutcome.PRODUCER_FENCED, -1),
    ]
    assert await scene.outcomes(batch(key, 5, epoch=1), batch(key, 2, epoch=2)) == [(APPENDED, 60), (OUT_OF_ORDER, -1)]


@pytest.mark.requirement("W1")
@pytest.mark.parametrize("life", [-1, 2])
async def test_what_may_have_a_gap_is_never_called_stored(scene: Scene, raw: Session, life: int) -> None:
    """Rows of before the migration (-1), and of a life that this server never began: they do not belong to its log."""
    key = scene.keys[0]
    await scene.outcomes(*(batch(key, sequence) for sequence in range(0, 50, 5)))
    await raw.execute("UPDATE producer_state SET contiguous_life = %s", [life])
    assert await scene.outcomes(batch(key, 0)) == [(OUT_OF_ORDER, -1)]
    assert await scene.outcomes(batch(key, 50), batch(key, 0)) == [(APPENDED, 50), (OUT_OF_ORDER, -1)]
    assert await scene.outcomes(*(batch(key, sequence, epoch=1) for sequence in range(0, 35, 5))) == appended(
        *range(55, 90, 5)
    )
    assert await scene.outcomes(batch(key, 0, epoch=1)) == [(DUPLICATE_SEQUENCE, -1)], "a new epoch begins at 0"


@pytest.mark.requirement("W1")
async def test_what_a_forgotten_producer_did_not_store_is_never_called_stored(scene: Scene, raw: Session) -> None:
    """It starts above 0: what is below was stored and forgotten, or was never there."""
    key = scene.keys[0]
    await raw.execute("INSERT INTO producer_id_blocks VALUES (1, 9, clock_timestamp() - interval '2 days')")
    await raw.execute(AGED, [key])
    await scene.outcomes(*(batch(key, sequence, producer=9) for sequence in range(100, 150, 5)))
    assert await scene.outcomes(batch(key, 100, producer=9)) == [(OUT_OF_ORDER, -1)]
    assert await scene.outcomes(batch(key, 50, producer=9)) == [(OUT_OF_ORDER, -1)]


async def test_behind_is_circular_once_sequences_wrapped(raw: Session) -> None:
    last, half = 2**31 - 1, 2**30
    behind = {
        (0, 5, 5, False): True,
        (0, 6, 5, False): False,
        (last, 1, 5, False): False,
        (last, 1, 5, True): True,
        (last - 4, 10, 5, True): True,
        (last - 4, 11, 5, True): False,
        (5, 1, 5, True): False,
        (6, 1, 5, True): False,
        (half + 5, 1, 5, True): True,
        (half + 4, 1, 5, True): False,
        (last, 1, 0, True): True,
    }
    for asked, expected in behind.items():
        assert await rows(raw, "SELECT is_behind(%s, %s, %s, %s)", *asked) == [(expected,)], asked


@pytest.mark.requirement("W7")
async def test_a_duplicate_gets_its_first_offset_and_time_through_another_agent(scene: Scene) -> None:
    key = scene.keys[0]
    (first,) = await scene.commit(file_of([batch(key, 0)]))
    other = await join(scene.store)
    (again,) = await scene.commit(file_of([batch(key), batch(key, 0, max_timestamp=9)]), by=other)
    assert again.batches[1] == first.batches[0]._replace(outcome=DUPLICATE)


@pytest.mark.requirement("W8")
async def test_a_dead_batch_between_two_live_ones_is_in_no_extent(scene: Scene) -> None:
    key = scene.keys[0]
    await scene.outcomes(batch(key, 0))
    file = file_of([batch(key, 5), batch(key, 0), batch(key, 10)])
    await scene.commit(file)
    (found,) = await scene.store.index.find_extents([ExtentQuery(key, 5, 1 << 20)])
    assert [(e.base_offset, e.last_offset, e.position, e.length) for e in found.extents] == [
        (5, 9, 0, BATCH_BYTES),
        (10, 14, 2 * BATCH_BYTES, BATCH_BYTES),
    ]
    assert await _live_bytes(scene, file) == 2 * BATCH_BYTES


async def test_several_batches_of_one_call_are_folded_in_order(scene: Scene) -> None:
    key = scene.keys[0]
    await scene.outcomes(batch(key, 0, records=10))
    found = await scene.outcomes(*(batch(key, sequence) for sequence in (10, 20, 15, 20)))
    assert found == [(APPENDED, 10), (OUT_OF_ORDER, -1), (APPENDED, 15), (APPENDED, 20)]


async def test_the_same_batch_twice_in_one_call_is_appended_once(scene: Scene) -> None:
    key = scene.keys[0]
    assert await scene.outcomes(batch(key), batch(key, 0), batch(key, 0)) == [*appended(0, 5), (DUPLICATE, 5)]


async def test_the_epoch_is_judged_before_the_sequence(scene: Scene) -> None:
    key = scene.keys[0]
    assert await scene.outcomes(batch(key, 0, epoch=3), batch(key, 5, epoch=3)) == appended(0, 5)
    assert await scene.outcomes(batch(key, 10, epoch=2)) == [(BatchOutcome.PRODUCER_FENCED, -1)]
    assert await scene.outcomes(batch(key, 0, epoch=2)) == [(BatchOutcome.PRODUCER_FENCED, -1)]
    assert await scene.outcomes(batch(key, 10, epoch=4)) == [(OUT_OF_ORDER, -1)]
    assert await scene.outcomes(batch(key, 0, epoch=4)) == appended(10)
    assert await scene.outcomes(batch(key, 5, epoch=3)) == [(BatchOutcome.PRODUCER_FENCED, -1)]


async def test_sequences_wrap(scene: Scene, raw: Session) -> None:
    key = scene.keys[0]
    await raw.execute("INSERT INTO producer_id_blocks VALUES (1, 9, clock_timestamp() - interval '2 days')")
    await raw.execute(AGED, [key])
    last = 2**31 - 1
    assert await scene.outcomes(batch(key, last - 1, 5, producer=1), batch(key, 3, producer=1)) == appended(0, 5)
    assert await scene.outcomes(batch(key, last - 1, 5, producer=1)) == [(DUPLICATE, 0)]
    assert await scene.outcomes(batch(key, 8, producer=1)) == appended(10)


async def test_only_an_id_that_may_be_forgotten_starts_above_zero(scene: Scene, raw: Session) -> None:
    key = scene.keys[0]
    young = (await scene.store.commits.allocate_producer_ids(10))[3]
    await raw.execute("INSERT INTO producer_id_blocks VALUES (1, 9, clock_timestamp() - interval '2 days')")
    await raw.execute(
        "INSERT INTO producer_id_blocks VALUES (10, 19, clock_timestamp() - interval '24 hours 15 minutes')"
    )
    await raw.execute(AGED, [key])
    assert await scene.outcomes(batch(key, 5, producer=young)) == [(OUT_OF_ORDER, -1)]
    assert await scene.outcomes(batch(key, 5, producer=99)) == [(OUT_OF_ORDER, -1)]
    assert await scene.outcomes(batch(key, 5, producer=10)) == [(OUT_OF_ORDER, -1)], "it may be younger than its block"
    assert await scene.outcomes(batch(scene.keys[1], 5, producer=9)) == [(OUT_OF_ORDER, -1)], "a young partition"
    assert await scene.outcomes(batch(key, 5, producer=9)) == appended(0)


@pytest.mark.requirement("W7")
async def test_a_fresh_producer_of_an_old_cluster_keeps_its_order(scene: Scene, raw: Session) -> None:
    """Its agent assigned one id a day ago, and now the next. The producer's second batch arrives first."""
    key, clock = scene.keys[0], ManualClock()
    ids = ProducerIds(scene.store.commits, clock)
    await ids.next()
    await clock.advance(49 * 3_600)
    await move_time(raw, 49 * 3_600)
    fresh = await ids.next()

    async def commit(sequence: int) -> list[tuple[BatchOutcome, int]]:
        (answer,) = await scene.commit(file_of([batch(key, sequence, producer=fresh)], age_ms=-49 * HOUR_MS))
        return pairs(answer.batches)

    assert await commit(5) == [(OUT_OF_ORDER, -1)]
    assert await commit(0) == appended(0)
    assert await commit(5) == appended(5)


async def test_a_refused_batch_does_not_move_its_producer_on(scene: Scene) -> None:
    key = scene.keys[0]
    refused = [batch(key, 0, leader_epoch=7), batch(key, 0, partition_count=9)]
    mismatches = [(BatchOutcome.LEADER_EPOCH_MISMATCH, -1), (BatchOutcome.PARTITION_COUNT_MISMATCH, -1)]
    assert await scene.outcomes(*refused, batch(key, 0)) == [*mismatches, (APPENDED, 0)]


async def test_a_duplicate_is_one_also_after_the_topic_has_grown(scene: Scene, raw: Session) -> None:
    key = scene.keys[0]
    sent = batch(key, 0, leader_epoch=0, partition_count=3)
    assert await scene.outcomes(sent) == appended(0)
    await raw.execute("UPDATE topics SET undeleted_partition_count = 4")
    await raw.execute("UPDATE partitions SET leader_epoch = 1")
    assert await scene.outcomes(sent) == [(DUPLICATE, 0)]
    late = [batch(key, 5, leader_epoch=0, partition_count=3), batch(key, 5, leader_epoch=1, partition_count=3)]
    assert [outcome for outcome, _ in await scene.outcomes(*late)] == [
        BatchOutcome.LEADER_EPOCH_MISMATCH,
        BatchOutcome.PARTITION_COUNT_MISMATCH,
    ]
    assert await scene.outcomes(batch(key, 5, leader_epoch=1, partition_count=4)) == appended(5)


async def test_a_deleted_partition_is_unknown_and_its_neighbours_go_on(scene: Scene) -> None:
    other = await open_scene(scene.store)
    await delete(scene.store, scene.topic.topic_id)
    found = await scene.outcomes(batch(scene.keys[0]), batch(other.keys[0], 0), batch(1 << 50))
    assert found == [(BatchOutcome.UNKNOWN_PARTITION, -1), (APPENDED, 0), (BatchOutcome.UNKNOWN_PARTITION, -1)]


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("regular", [True, False])
async def test_the_same_file_again_gets_the_same_answer(scene: Scene, regular: bool) -> None:
    a, b, _ = scene.keys
    file = file_of([batch(b, 0), batch(a, 0), batch(a, 5 if regular else 6), batch(b, 5), batch(a)])
    first = await scene.commit(file)
    await scene.outcomes(batch(a), batch(b, 10))
    _, again = await scene.commit(file_of([batch(a)]), file)
    assert again == first[0]
    assert await scene.commit(file) == first


async def test_a_fenced_agent_commits_nothing_new_but_hears_of_what_it_did(scene: Scene) -> None:
    done, late = file_of([batch(scene.keys[0], 0)]), file_of([batch(scene.keys[0], 5)])
    first = await scene.commit(done)
    await scene.store.cluster.unregister_agent(*scene.agent)
    assert await scene.commit(done) == first
    (refused,) = await scene.commit(late)
    assert (refused.status, refused.batches) == (FileStatus.AGENT_FENCED, [])
    (accepted,) = await scene.commit(late, by=await join(scene.store))
    assert pairs(accepted.batches) == appended(5)


async def test_a_file_created_too_long_ago_or_ahead_is_refused(scene: Scene) -> None:
    key = scene.keys[0]
    files = [file_of([batch(key)], age_ms=age) for age in (HOUR_MS + 60_000, HOUR_MS - 60_000, -540_000, -660_000)]
    statuses = [answer.status for answer in await scene.commit(*files)]
    assert statuses == [FileStatus.TOO_OLD, FileStatus.COMMITTED, FileStatus.COMMITTED, FileStatus.TOO_OLD]


async def test_an_answer_is_kept_beyond_its_file_s_time_until_its_slot_is_emptied(scene: Scene, raw: Session) -> None:
    file = file_of([batch(scene.keys[0])])
    first = await scene.commit(file)
    await move_time(raw, 3_700)
    assert await scene.commit(file) == first
    await move_time(raw, 6 * 900)
    while await scene.store.housekeeping.rotate_log_slots():
        pass
    (gone,) = await scene.commit(file)
    assert gone.status is FileStatus.TOO_OLD
    assert await scene.read() == [(0, 4)]


async def test_a_condemned_file_is_never_committed(scene: Scene, raw: Session) -> None:
    file = file_of([batch(scene.keys[0])])
    await condemn(raw, file.file_id)
    (answer,) = await scene.commit(file)
    assert answer.status is FileStatus.CONDEMNED
    assert await scene.read() == []


async def test_a_file_without_batches_is_committed(scene: Scene) -> None:
    (answer,) = await scene.commit(file_of([]))
    assert (answer.status, answer.batches) == (FileStatus.COMMITTED, [])
    assert await scene.commit() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"record_count": 0},
        {"record_count": 1 << 29},
        {"length": 0},
        {"length": 1 << 31},
        {"position": -1},
        {"position": 1 << 63},
        {"partition_key": -1},
        {"producer_id": 5, "producer_epoch": -1, "base_sequence": 0},
        {"producer_id": 5, "producer_epoch": 1 << 15, "base_sequence": 0},
        {"producer_id": 5, "producer_epoch": 0, "base_sequence": -1},
        {"base_sequence": 1 << 31},
        {"leader_epoch": -2},
        {"partition_count": 1 << 31},
    ],
)
async def test_a_number_that_cannot_be_right_poisons_the_call_and_nothing_happens(
    scene: Scene, wrong: dict[str, int]
) -> None:
    good = file_of([batch(scene.keys[0])])
    poison = FileCommit(file_of([]).file_id, 1 << 40, [batch(scene.keys[1])._replace(**wrong)])
    with pytest.raises(InvalidError, match="commit refused"):
        await scene.commit(good, poison)
    assert await scene.read() == []
    (answer,) = await scene.commit(good)
    assert pairs(answer.batches) == appended(0)


async def test_a_batch_must_be_inside_its_file(scene: Scene) -> None:
    file = FileCommit(file_of([]).file_id, BATCH_BYTES - 1, [batch(scene.keys[0])])
    with pytest.raises(InvalidError, match=str(file.file_id)):
        await scene.commit(file)


async def test_a_file_id_means_one_list_of_batches(scene: Scene) -> None:
    file = file_of([batch(scene.keys[0])])
    with pytest.raises(InvalidError, match="twice in one call"):
        await scene.commit(file, file)
    await scene.commit(file)
    other = FileCommit(file.file_id, file.size, [*file.batches, batch(scene.keys[1])])
    with pytest.raises(InvalidError, match="other batches"):
        await scene.commit(other)


async def test_a_deleted_topic_leaves_only_its_producers_once_purged(scene: Scene, raw: Session) -> None:
    """These count as learned of when the topic was deleted, so they expire one expiration later."""
    other = await open_scene(scene.store)
    kept = file_of([batch(scene.keys[0], 0), batch(other.keys[0], 0), batch(scene.keys[1], 0), batch(scene.keys[0], 5)])
    await scene.commit(kept)
    await raw.execute("UPDATE producer_state SET touched_hour = 5")
    await delete(scene.store, scene.topic.topic_id)
    removed = []
    while count := await scene.store.housekeeping.purge_deleted_partitions(1):
        removed.append(count)
    assert sum(removed) == 3 + 2 + 3  # extents, producers, entries
    assert await _live_bytes(scene, kept) == BATCH_BYTES
    assert await rows(raw, "SELECT DISTINCT partition_key FROM extents") == [(other.keys[0],)]
    hours = "SELECT touched_hour = (SELECT to_ms(deleted_at) / 3600000 FROM deleted_topics) FROM producer_state"
    assert await rows(raw, f"{hours} ORDER BY partition_key") == [(True,), (True,), (False,)]
    assert await rows(raw, "SELECT count(*) FROM deleted_partitions") == [(0,)]


async def _live_bytes(scene: Scene, file: FileCommit) -> int:
    async with scene.store.pool.connection() as connection:
        found = await rows(connection, "SELECT live_bytes FROM segment_files WHERE file_id = %s", file.file_id)
    return int(found[0][0])
