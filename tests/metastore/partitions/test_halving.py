"""Unmodified producers and reading groups while their topic halves: order per key; and planted bugs."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from headrace.metastore.partitions.merging import (
    LAG_MOST,
    PAUSE_AGAIN_MS,
    PAUSE_MOST_MS,
    SETTLE_AFTER_MS,
    SHOW_AFTER_MS,
    MergePhase,
    MergeVerdict,
    PartitionMerge,
)
from headrace.metastore.partitions.splitting import PRODUCER_QUIET_MS
from tests.key_order.halving_order import COUNT, DELIVERY_MS, REFRESH_MS, TIMES, HalvingWorld, merge, shown_at_once
from tests.planted import PlantedBugs, Trial
from tests.seeds import first

SEEDS = first(4, range(12))
MANY = range(40)
IN_CHILD, IN_PARENT = MergeVerdict.IN_CHILD, MergeVerdict.IN_PARENT
SEND_AGAIN, REFUSED = MergeVerdict.SEND_AGAIN, MergeVerdict.REFUSED


def test_order_per_key_is_kept_and_only_what_a_client_had_queued_fails() -> None:
    worlds = [HalvingWorld(seed).run() for seed in SEEDS]
    assert any(world.undone for world in worlds), "some group was too slow for a pause"
    for world in worlds:
        assert (world.inversions, world.refused) == ([], [])
        assert world.shown_ms is not None
        stored = [record for log in world.logs.values() for record in log]
        assert len(set(stored)) == len(stored)
        assert {*stored, *world.failed} == set(world.sent), "a client that gives up may not know that it was stored"
        assert len(world.failed) < len(world.sent) / 100
        assert all(world.producers[record.producer].takes_lower_counts for record in world.failed)
        assert all(world.logs[parent + COUNT] for parent in range(COUNT)), "every child had records"


def test_a_count_that_is_shown_at_once_makes_clients_give_up_what_was_sent_back() -> None:
    failed = [sum(len(HalvingWorld(seed, make).run().failed) for seed in SEEDS) for make in (merge, shown_at_once)]
    assert failed[1] > 2 * failed[0]


class AsksNoGroup(PartitionMerge):
    """The pause is not for the groups' commits."""

    def advance(self, end: int, committed: Collection[int], now_ms: int) -> None:
        super().advance(end, [] if self.phase is MergePhase.PAUSED else committed, now_ms)


class AsksOneGroup(PartitionMerge):
    """The first group's commit is enough."""

    def advance(self, end: int, committed: Collection[int], now_ms: int) -> None:
        super().advance(end, list(committed)[:1], now_ms)


class DoesNotPause(PartitionMerge):
    """Batches are appended to the child until it is merged: the end that the groups committed is not the last one."""

    def to_child(self, producer_id: int, now_ms: int) -> MergeVerdict:
        return IN_CHILD if self.phase is MergePhase.PAUSED else super().to_child(producer_id, now_ms)


class GoesOnInTheChild(PartitionMerge):
    """The child takes the records of producers that do not know the new count."""

    def to_child(self, producer_id: int, now_ms: int) -> MergeVerdict:
        verdict = super().to_child(producer_id, now_ms)
        return IN_CHILD if verdict is IN_PARENT else verdict


class DoesNotWaitForProducers(PartitionMerge):
    """Moved keys are appended to the parent while the producer's older ones for the child are on their way."""

    def to_parent(self, producer_id: int, has_moved_key: bool, now_ms: int) -> MergeVerdict:
        return IN_PARENT if self.phase is MergePhase.MERGED else super().to_parent(producer_id, has_moved_key, now_ms)


class RefusesNothing(PartitionMerge):
    """Batches for the child are appended also after the producer switched."""

    def to_child(self, producer_id: int, now_ms: int) -> MergeVerdict:
        verdict = super().to_child(producer_id, now_ms)
        return IN_PARENT if verdict is REFUSED else verdict


class LooksBefore(DoesNotPause):
    """The child takes records in the pause: its end moves between the look at the commits and the merge."""

    seen = 0

    def advance(self, end: int, committed: Collection[int], now_ms: int) -> None:
        if self.phase is not MergePhase.PAUSED:
            self.seen = end
        super().advance(self.seen, committed, now_ms)


BUGS = {
    AsksNoGroup: TIMES,
    AsksOneGroup: TIMES,
    GoesOnInTheChild: TIMES,
    DoesNotWaitForProducers: TIMES,
    LooksBefore: TIMES,
    RefusesNothing: TIMES._replace(producer_quiet_ms=50),
}
PLANTED = PlantedBugs("halving", most=500)


@PLANTED.cases(BUGS, lambda bug: bug.__name__)
def test_planted_bugs_are_found(bug: type[PartitionMerge], trial: Trial) -> None:
    for seed in trial.seeds():
        trial.saw(HalvingWorld(seed, lambda: bug(BUGS[bug])).run().inversions)


@pytest.mark.slow
def test_a_topic_that_doubles_again_before_clients_gave_up_is_found() -> None:
    class Again(HalvingWorld):
        doubles_again = True

    def after(settle_after_ms: int) -> list[HalvingWorld]:
        def made() -> PartitionMerge:
            return PartitionMerge(TIMES._replace(settle_after_ms=settle_after_ms))

        return [Again(seed, made).run() for seed in MANY]

    assert any(world.late for world in after(2 * REFRESH_MS))
    worlds = after(2 * REFRESH_MS + DELIVERY_MS)
    assert any(world.doubled for world in worlds)
    assert not any(world.late for world in worlds)


@pytest.fixture
def pair() -> PartitionMerge:
    """Its pause has begun at 1,000 ms."""
    found = PartitionMerge()
    found.advance(5_000 + LAG_MOST, [5_000, 6_000], 900)
    assert found.phase is MergePhase.PAUSED
    return found


def test_the_pause_waits_for_a_small_lag_of_each_group() -> None:
    pair = PartitionMerge()
    pair.advance(5_000 + LAG_MOST, [6_000, 4_999], 0)
    assert pair.phase is MergePhase.DRAINING
    assert pair.to_child(7, 0) is IN_CHILD
    assert pair.to_parent(7, False, 0) is IN_PARENT
    assert pair.to_parent(7, True, 0) is REFUSED, "as after the doubling"


def test_a_pause_is_undone_when_a_group_does_not_commit_the_end(pair: PartitionMerge) -> None:
    assert pair.to_child(7, 1_000) is SEND_AGAIN
    pair.advance(6_000, [5_999, 6_000], 899 + PAUSE_MOST_MS)
    assert pair.phase is MergePhase.PAUSED
    pair.advance(6_000, [5_999, 6_000], 900 + PAUSE_MOST_MS)
    assert pair.phase is MergePhase.DRAINING
    assert pair.to_child(7, 900 + PAUSE_MOST_MS) is IN_CHILD


def test_the_parent_takes_what_comes_for_the_child_and_then_moved_keys(pair: PartitionMerge) -> None:
    pair.advance(6_000, [6_000, 6_000], 2_000)
    assert pair.to_child(7, 2_500) is IN_PARENT
    assert not pair.may_show(1_999 + SHOW_AFTER_MS)
    assert pair.may_show(2_000 + SHOW_AFTER_MS)
    assert pair.to_parent(7, True, 2_499 + PRODUCER_QUIET_MS) is SEND_AGAIN
    assert pair.to_parent(7, True, 2_500 + PRODUCER_QUIET_MS) is IN_PARENT
    assert pair.to_child(7, 2_501 + PRODUCER_QUIET_MS) is REFUSED
    assert pair.to_parent(8, True, 9_000) is SEND_AGAIN, "what it sent to the child may be on its way"
    assert pair.to_child(8, 9_001) is IN_PARENT


def test_a_pause_ends_by_itself_and_the_next_one_comes_later(pair: PartitionMerge) -> None:
    assert pair.to_child(7, 899 + PAUSE_MOST_MS) is SEND_AGAIN
    assert pair.to_child(7, 900 + PAUSE_MOST_MS) is IN_CHILD, "also if no controller takes a step"
    undone = 900 + PAUSE_MOST_MS
    pair.advance(6_000, [5_999], undone)
    pair.advance(6_000, [5_999], undone + PAUSE_AGAIN_MS - 1)
    assert pair.phase is MergePhase.DRAINING
    pair.advance(6_000, [5_999], undone + PAUSE_AGAIN_MS)
    assert pair.phase is MergePhase.PAUSED


def test_a_settled_pair_appends_everything_to_the_parent(pair: PartitionMerge) -> None:
    pair.advance(6_000, [6_000], 2_000)
    assert pair.to_parent(7, True, 2_500) is SEND_AGAIN
    assert pair.to_parent(7, True, 2_500 + PRODUCER_QUIET_MS) is IN_PARENT
    shown = 2_000 + SHOW_AFTER_MS
    pair.settle(shown, shown + SETTLE_AFTER_MS - 1)
    assert pair.to_child(7, shown + SETTLE_AFTER_MS - 1) is REFUSED
    pair.settle(shown, shown + SETTLE_AFTER_MS)
    assert pair.to_child(7, shown + SETTLE_AFTER_MS) is IN_PARENT
    assert pair.to_parent(8, True, shown + SETTLE_AFTER_MS) is IN_PARENT
