"""The tail index row by row: what it keeps, what it forgets, and that forgetting is always safe."""

from __future__ import annotations

import uuid

import pytest

from headrace.agent.fetch.index.index import LOOK_AGAIN, TailIndex
from headrace.metastore.api.read import Extent, FeedKind, FeedPage, FeedRow, LogStartMove, PartitionExtents
from headrace.metastore.keys import partition_key

KEY = partition_key(4, 0)
OTHER = partition_key(4, 1)
SHARDS = 4
SHARD, OTHER_SHARD = 0, 1
LIFE = uuid.UUID(int=1)


def extent(base: int, last: int, *, key: int = KEY, length: int = 100, position: int = 0) -> Extent:
    return Extent(key, base, last, uuid.UUID(int=7 << 76 | base), position, length, 0, 0)


def commit(seq: int, *extents: Extent, shard: int = SHARD) -> FeedRow:
    return FeedRow(shard, seq, FeedKind.COMMIT, list(extents))


def page(*rows: FeedRow, lost: tuple[int, ...] = (), life: uuid.UUID = LIFE, **heads: int) -> FeedPage:
    """Heads are the rows' own unless said: s0=5."""
    reached = {row.shard: row.seq for row in rows}
    return FeedPage(life, 0, reached | {int(k[1:]): v for k, v in heads.items()}, list(rows), list(lost), 0)


def first_page() -> FeedPage:
    return page(s0=0, s1=0, s2=0, s3=0)


def started() -> TailIndex:
    """Return an index at the feed's beginning, with both partitions known to be empty."""
    index = TailIndex(SHARDS)
    index.apply(first_page())
    for key in (KEY, OTHER):
        index.observe(PartitionExtents(key, True, 0, 0, []), index.generation)
    return index


@pytest.fixture
def index() -> TailIndex:
    return started()


def test_commits_are_seen_in_order_and_reported_by_size(index: TailIndex) -> None:
    heard = index.apply(page(commit(1, extent(0, 4)), commit(2, extent(5, 5), extent(6, 9))))

    assert heard == {KEY: 300}
    sight = index.look(KEY, 5, 1_000)
    assert sight is not None
    assert (sight.high_watermark, [e.base_offset for e in sight.extents]) == (10, [5, 6])
    assert index.heads == {0: 2, 1: 0, 2: 0, 3: 0}


def test_a_reader_gets_extents_up_to_its_bytes_and_at_least_one(index: TailIndex) -> None:
    index.apply(page(commit(1, *[extent(i, i) for i in range(5)])))

    found = [index.look(KEY, 1, max_bytes) for max_bytes in (0, 100, 101, 10_000)]

    assert [len(sight.extents) for sight in found if sight] == [1, 1, 2, 4]


def test_nothing_is_known_before_the_primary_was_asked_once() -> None:
    index = TailIndex(SHARDS)
    index.apply(first_page())
    index.apply(page(commit(1, extent(7, 9))))
    assert index.look(KEY, 7, 1) is None

    index.observe(PartitionExtents(KEY, True, 2, 10, []), index.generation)

    sight = index.look(KEY, 7, 1)
    assert sight is not None
    assert (sight.log_start_offset, sight.high_watermark) == (2, 10)


def test_offsets_beyond_what_is_held_are_left_to_the_primary(index: TailIndex) -> None:
    index.apply(page(commit(1, extent(0, 4))))

    assert index.look(KEY, 6, 1) is None
    assert index.look(KEY, -1, 1) is None
    assert index.look(KEY, 5, 1) is not None


def test_a_primary_answer_that_is_ahead_of_the_feed_raises_the_high_watermark(index: TailIndex) -> None:
    index.observe(PartitionExtents(KEY, True, 0, 8, []), index.generation)

    assert index.look(KEY, 0, 1) is None
    at_end = index.look(KEY, 8, 1)
    assert at_end is not None
    assert at_end.extents == []
    index.apply(page(commit(1, extent(0, 7))))
    assert index.high_watermark(KEY) == 8


def test_rows_seen_before_are_skipped(index: TailIndex) -> None:
    row = commit(1, extent(0, 4))
    index.apply(page(row))

    assert index.apply(page(row)) == {}
    assert index.high_watermark(KEY) == 5


def test_a_gap_in_the_numbers_forgets_the_shard_and_goes_on_after_it(index: TailIndex) -> None:
    index.apply(page(commit(1, extent(0, 4)), commit(1, extent(0, 0, key=OTHER), shard=OTHER_SHARD)))

    heard = index.apply(page(commit(3, extent(9, 9))))

    assert heard[KEY] >= LOOK_AGAIN
    assert index.look(KEY, 9, 1) is None
    assert index.look(OTHER, 0, 1) is not None
    assert index.heads[SHARD] == 3


def test_a_lost_shard_is_forgotten_and_followed_from_its_head(index: TailIndex) -> None:
    index.apply(page(commit(1, extent(0, 4))))

    heard = index.apply(page(lost=(SHARD,), s0=40))

    assert heard == {KEY: LOOK_AGAIN}
    assert index.look(KEY, 0, 1) is None
    assert index.heads[SHARD] == 40


def test_a_feed_that_went_back_is_not_believed(index: TailIndex) -> None:
    index.apply(page(commit(1, extent(0, 4)), commit(2, extent(5, 5))))

    index.apply(page(s0=1))

    assert index.look(KEY, 0, 1) is None
    assert index.heads[SHARD] == 1


def test_another_life_of_the_metastore_forgets_everything(index: TailIndex) -> None:
    index.apply(page(commit(1, extent(0, 4))))

    heard = index.apply(page(commit(2, extent(0, 0)), life=uuid.UUID(int=2), s1=5, s2=0))

    assert heard == {KEY: LOOK_AGAIN, OTHER: LOOK_AGAIN}
    assert index.high_watermark(KEY) == 0
    assert index.heads == {0: 2, 1: 5, 2: 0}


def test_a_primary_answer_from_before_something_was_forgotten_teaches_nothing(index: TailIndex) -> None:
    asked_at = index.generation
    index.apply(page(lost=(SHARD,), s0=3))

    index.observe(PartitionExtents(KEY, True, 0, 99, []), asked_at)

    assert index.look(KEY, 99, 1) is None
    assert index.high_watermark(KEY) == 0


def test_a_partition_of_an_unfollowed_shard_is_left_to_the_primary() -> None:
    index = TailIndex(SHARDS)

    index.observe(PartitionExtents(KEY, True, 0, 5, []), index.generation)

    assert index.look(KEY, 5, 1) is None


def test_the_log_start_moves_forward_only_and_takes_extents_with_it(index: TailIndex) -> None:
    index.apply(page(commit(1, extent(0, 4), extent(5, 9))))
    move = FeedRow(SHARD, 2, FeedKind.LOG_START, log_starts=[LogStartMove(KEY, 6)])

    index.apply(page(move))
    index.observe(PartitionExtents(KEY, True, 3, 10, []), index.generation)

    assert index.look(KEY, 5, 1) is None
    sight = index.look(KEY, 6, 1)
    assert sight is not None
    assert (sight.log_start_offset, len(sight.extents)) == (6, 1)


def test_a_log_start_that_came_before_the_first_question_is_not_lost() -> None:
    index = TailIndex(SHARDS)
    index.apply(first_page())
    index.apply(page(commit(1, extent(0, 9)), FeedRow(SHARD, 2, FeedKind.LOG_START, [], [LogStartMove(KEY, 6)])))

    index.observe(PartitionExtents(KEY, True, 0, 10, []), index.generation)

    assert index.look(KEY, 5, 1) is None


def test_a_swap_leaves_what_it_replaced_to_the_primary(index: TailIndex) -> None:
    index.apply(page(commit(1, extent(0, 4), extent(5, 9), extent(10, 10))))

    index.apply(page(FeedRow(SHARD, 2, FeedKind.SWAP, [extent(0, 9)])))

    assert index.look(KEY, 4, 1) is None
    assert index.look(KEY, 9, 1) is None
    assert index.look(KEY, 10, 1) is not None
    index.apply(page(commit(3, extent(11, 12))))
    assert index.high_watermark(KEY) == 13


def test_a_deleted_topic_is_forgotten_even_if_an_old_answer_comes_late(index: TailIndex) -> None:
    asked_at = index.generation

    heard = index.apply(page(FeedRow(SHARD, 1, FeedKind.TOPIC_DELETED, deleted_keys=[KEY])))
    index.observe(PartitionExtents(KEY, True, 0, 5, []), asked_at)

    assert heard == {KEY: LOOK_AGAIN}
    assert index.look(KEY, 5, 1) is None


def test_extents_that_do_not_continue_the_tail_replace_it(index: TailIndex) -> None:
    index.apply(page(commit(1, extent(0, 4))))

    index.apply(page(commit(2, extent(3, 8))))

    assert index.look(KEY, 3, 1) is None
    assert index.high_watermark(KEY) == 9


def test_memory_is_bounded_and_the_oldest_arrival_goes_first() -> None:
    index = TailIndex(SHARDS, extents_max=10)
    index.apply(first_page())
    for key in (KEY, OTHER):
        index.observe(PartitionExtents(key, True, 0, 0, []), index.generation)
    for seq in range(1, 21):
        index.apply(page(commit(seq, extent(seq - 1, seq - 1))))
    index.apply(page(*[commit(seq, extent(seq - 1, seq - 1, key=OTHER), shard=OTHER_SHARD) for seq in range(1, 5)]))

    held = [offset for offset in range(20) if index.look(KEY, offset, 1)]
    assert held == [14, 15, 16, 17, 18, 19]
    assert [offset for offset in range(4) if index.look(OTHER, offset, 1)] == [0, 1, 2, 3]


def test_the_end_of_a_files_live_bytes_grows_with_what_is_heard(index: TailIndex) -> None:
    one = extent(0, 0, position=50)
    two = replace_file(extent(0, 0, key=OTHER, position=900), one.file_id)

    index.apply(page(commit(1, one), commit(1, two, shard=OTHER_SHARD)))

    assert index.live_end(one.file_id) == 1000
    assert index.live_end(uuid.UUID(int=123)) == 0


def replace_file(of: Extent, file_id: uuid.UUID) -> Extent:
    return of._replace(source=file_id)


def test_forget_all_starts_over(index: TailIndex) -> None:
    index.apply(page(commit(1, extent(0, 4))))

    assert index.forget_all() == {KEY: LOOK_AGAIN, OTHER: LOOK_AGAIN}

    assert index.heads == {}
    index.apply(page(s0=7))
    assert index.heads[SHARD] == 7


def test_the_log_start_is_known_once_the_primary_or_the_first_row_of_all_told_it() -> None:
    index = TailIndex(SHARDS)
    index.apply(first_page())
    index.apply(page(commit(1, extent(0, 4), extent(7, 9, key=OTHER))))
    assert (index.log_start_offset(KEY), index.log_start_offset(OTHER)) == (0, -1)

    index.observe(PartitionExtents(OTHER, True, 2, 10, []), index.generation)
    index.apply(page(FeedRow(SHARD, 2, FeedKind.LOG_START, log_starts=[LogStartMove(KEY, 3)])))

    assert (index.log_start_offset(KEY), index.log_start_offset(OTHER)) == (3, 2)


def test_what_a_promoted_standby_lacks_is_recorded_before_its_life_begins() -> None:
    """As lost of a shard says: its feed is shorter than what was read, or rows of it were deleted."""
    index, recorded = started(), list[Extent]()
    index.on_forgotten = recorded.extend
    index.apply(page(commit(1, extent(0, 4)), commit(2, extent(5, 9)), commit(1, extent(0, 1, key=OTHER), shard=1)))
    index.apply(page(lost=(OTHER_SHARD,), s1=9))
    assert recorded == [], "deleted rows are no loss"
    index.apply(page(lost=(SHARD,), s0=1))
    assert [(e.partition_key, e.base_offset) for e in recorded] == [(KEY, 0), (KEY, 5)]
    index.apply(page(life=uuid.UUID(int=2), s0=1, s1=9))
    assert len(recorded) == 2, "once"
