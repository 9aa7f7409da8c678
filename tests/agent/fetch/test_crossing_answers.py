"""Answers of the primary that cross each other, swaps, cleaning passes and moves of the log start, one case at a time.

test_segment_cache.py of the properties has them in any order.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from headrace.agent.fetch.index.index import TailIndex
from headrace.metastore.api.read import (
    NONE_OPEN,
    AbortedRange,
    Extent,
    FeedKind,
    FeedPage,
    FeedRow,
    LogStartMove,
    PartitionExtents,
)
from headrace.metastore.keys import commit_shard, partition_key
from headrace.metastore.transaction_markers import Marker, marker_file_id

KEY = partition_key(4, 0)
SHARDS = 4
SHARD = commit_shard(KEY, SHARDS)
OTHER_SHARD = (SHARD + 1) % SHARDS
PRODUCER = 9
ABORTED = AbortedRange(KEY, PRODUCER, 50, 150)
ALL = 1 << 40
pytestmark = pytest.mark.requirement("R8")


def extent(base: int, last: int) -> Extent:
    return Extent(KEY, base, last, uuid.uuid4(), 0, 100, 0, 0)


def marker(offset: int) -> Extent:
    return Extent(KEY, offset, offset, marker_file_id(Marker(PRODUCER, 0, False)), 0, 78, 0, 0)


class Asked:
    """An agent's index, and questions to the primary."""

    def __init__(self) -> None:
        self.index = TailIndex(SHARDS)
        self.seq = 0
        self.index.apply(self.page())

    def page(self, *rows: FeedRow) -> FeedPage:
        heads = dict.fromkeys(range(SHARDS), 0) | {SHARD: self.seq}
        return FeedPage(uuid.UUID(int=1), 0, heads, list(rows), [], 0)

    def hear(self, kind: FeedKind, *extents: Extent, **more: object) -> None:
        self.seq += 1
        self.index.apply(self.page(FeedRow(SHARD, self.seq, kind, list(extents), **more)))  # type: ignore[arg-type]

    def ask(self) -> tuple[int, int]:
        return self.index.generation, self.index.history.changes

    def answer(
        self, asked: tuple[int, int], extents: Sequence[Extent], aborted: Sequence[AbortedRange] = (), start: int = 0
    ) -> None:
        """Take the answer over as locate.py does."""
        found = PartitionExtents(KEY, True, start, 1_000, list(extents), NONE_OPEN, list(aborted))
        if self.index.observe(found, asked[0]):
            self.index.history.keep(KEY, extents, asked[1], aborted)

    def reads(self, offset: int) -> list[tuple[int, int]]:
        """Return the extents that a reader gets here; none if the primary is asked."""
        found = self.index.look(KEY, offset, ALL) or self.index.look_back(KEY, offset, ALL)
        return [(each.base_offset, each.last_offset) for each in found.extents] if found else []

    def aborted(self, offset: int) -> list[AbortedRange] | None:
        """Return what a reader hears of aborted transactions; None if the primary is asked."""
        found = self.index.look_back(KEY, offset, ALL)
        return None if found is None else list(found.aborted)


@pytest.fixture
def agent() -> Asked:
    return Asked()


def test_answers_that_meet_are_joined(agent: Asked) -> None:
    agent.answer(agent.ask(), [extent(100, 149), extent(150, 199)])
    agent.answer(agent.ask(), [extent(0, 99)])
    agent.answer(agent.ask(), [extent(200, 299)])
    assert agent.reads(0) == [(0, 99), (100, 149), (150, 199), (200, 299)]


def test_an_answer_from_before_a_swap_leaves_nothing_out(agent: Asked) -> None:
    asked = agent.ask()
    agent.answer(asked, [extent(0, 49), extent(50, 149), extent(150, 199)])
    agent.answer(asked, [extent(0, 49), extent(50, 99)])
    assert agent.reads(0) == [(0, 49), (50, 99)]


def test_an_answer_from_before_a_swap_brings_nothing_twice(agent: Asked) -> None:
    asked = agent.ask()
    agent.answer(asked, [extent(0, 149), extent(150, 199)])
    agent.answer(asked, [extent(100, 119), extent(120, 149)])
    assert agent.reads(0) == []
    assert agent.reads(100) == [(100, 119), (120, 149), (150, 199)]


def test_an_aborted_transaction_comes_with_its_marker(agent: Asked) -> None:
    agent.answer(agent.ask(), [extent(0, 49), extent(50, 99)], [ABORTED])
    assert agent.aborted(0) == [ABORTED], "up to here, it hides no more than it should"
    agent.answer(agent.ask(), [extent(100, 149), marker(150), extent(151, 300)], [ABORTED])
    assert agent.reads(0)[-1] == (151, 300)
    assert agent.aborted(0) == [ABORTED]
    assert agent.aborted(151) == []


@pytest.mark.parametrize("is_fed", [True, False])
def test_an_aborted_transaction_does_not_come_without_its_marker(agent: Asked, *, is_fed: bool) -> None:
    """A cleaning pass has removed both; what the producer committed later is behind, and not cleaned yet."""
    agent.answer(agent.ask(), [extent(0, 49), extent(50, 99)], [ABORTED])
    if is_fed:
        agent.hear(FeedKind.SWAP, extent(150, 150))
    agent.answer(agent.ask(), [extent(100, 149), extent(150, 150), extent(151, 300)])
    assert agent.aborted(0) is None
    assert agent.aborted(100) == []


def test_a_marker_that_goes_with_the_end_of_a_run_is_not_missed(agent: Asked) -> None:
    agent.answer(agent.ask(), [extent(0, 49), extent(50, 149), marker(150), extent(151, 200)], [ABORTED])
    agent.hear(FeedKind.SWAP, extent(150, 260))
    assert agent.reads(0) == [(0, 49), (50, 149)]
    agent.answer(agent.ask(), [extent(150, 260), extent(261, 500)])
    assert agent.aborted(0) is None
    assert agent.aborted(150) == []


def test_the_primary_is_asked_where_a_rebuilt_log_has_a_gap(agent: Asked) -> None:
    agent.answer(agent.ask(), [extent(0, 49), extent(60, 99), extent(100, 149)])
    assert agent.reads(0) == agent.reads(55) == []
    assert agent.reads(60) == [(60, 99), (100, 149)]


def test_deleted_records_are_gone_although_an_unrelated_shard_was_dropped_meanwhile(agent: Asked) -> None:
    agent.hear(FeedKind.COMMIT, extent(0, 99))
    mark = agent.index.before_move()
    agent.index.drop({OTHER_SHARD})
    agent.index.move_log_start(mark, KEY, 100)
    assert agent.reads(0) == []


def test_deleted_records_are_gone_although_an_older_answer_comes_later(agent: Asked) -> None:
    mark, asked = agent.index.before_move(), agent.ask()
    agent.index.move_log_start(mark, KEY, 100)
    agent.answer(asked, [extent(0, 49), extent(50, 99), extent(100, 149)])
    assert agent.reads(0) == agent.reads(50) == []
    assert agent.reads(100) == [(100, 149)]


def test_deleted_records_of_a_shard_that_is_followed_later_are_not_read_from_the_feed(agent: Asked) -> None:
    """The page has the partition's first records, and not yet what was deleted."""
    agent.index.drop({SHARD})
    agent.index.move_log_start(agent.index.before_move(), KEY, 100)
    agent.index.follow({SHARD})
    agent.hear(FeedKind.COMMIT, extent(0, 99))
    assert agent.reads(0) == []
    agent.hear(FeedKind.LOG_START, log_starts=[LogStartMove(KEY, 100)])
    assert agent.reads(0) == []


def test_deleted_records_of_a_topic_that_was_deleted_since_are_not_read_from_the_feed(agent: Asked) -> None:
    """The primary says that the partition is gone, and the feed has just brought its first records."""
    agent.answer(agent.ask(), [])
    agent.index.move_log_start(agent.index.before_move(), KEY, 100)
    agent.index.observe(PartitionExtents(KEY, False, -1, -1, []), agent.index.generation)
    agent.hear(FeedKind.COMMIT, extent(0, 99))
    assert agent.reads(0) == []


@pytest.mark.parametrize("is_late", [False, True], ids=["answers in time", "answers from before"])
def test_restored_records_are_read(agent: Asked, is_late: bool) -> None:
    """The log start moves back: the feed drops the partition, then says where it begins."""
    agent.answer(agent.ask(), [extent(100, 149)], start=100)
    mark, asked = agent.index.before_move(), agent.ask()
    agent.hear(FeedKind.TOPIC_DELETED, deleted_keys=[KEY])
    agent.hear(FeedKind.LOG_START, log_starts=[LogStartMove(KEY, 50)])
    if is_late:
        agent.index.move_log_start(mark, KEY, 100)
        agent.answer(asked, [extent(100, 149)], start=100)
    assert agent.reads(50) == []
    agent.answer(agent.ask(), [extent(50, 99), extent(100, 149)], start=50)
    assert agent.reads(50) == [(50, 99), (100, 149)]
    assert agent.index.log_start_offset(KEY) == 50


def test_a_partition_that_starts_over_keeps_nothing_of_the_other_history(agent: Asked) -> None:
    """The feed has something else in the place of what this agent committed."""
    agent.answer(agent.ask(), [extent(0, 49), extent(50, 99)])
    assert agent.reads(0)
    agent.hear(FeedKind.COMMIT, extent(1_000, 1_009))
    agent.index.take_own([extent(1_010, 1_019)])
    agent.hear(FeedKind.COMMIT, extent(1_010, 1_014))
    agent.answer((agent.index.generation, -1), [])  # watermark and log start, and no extents
    assert agent.reads(0) == []
