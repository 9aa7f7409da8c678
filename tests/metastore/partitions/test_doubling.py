"""Unmodified producers while their topic doubles: order per key, nothing lost; and planted bugs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.metastore.partitions.splitting import (
    BOUNDARY_QUIET_MS,
    PRODUCER_QUIET_MS,
    PartitionSplit,
    SplitVerdict,
)
from tests.key_order.doubling_order import BOUNDARY_MS, COUNT, DoublingWorld, with_early_boundary, without_waiting
from tests.planted import PlantedBugs, Trial

SEEDS = range(12)
MANY = range(40)
APPENDED, SEND_AGAIN, REFUSED = SplitVerdict.APPENDED, SplitVerdict.SEND_AGAIN, SplitVerdict.REFUSED


def test_order_per_key_is_kept_and_nothing_is_refused_finally() -> None:
    for seed in SEEDS:
        world = DoublingWorld(seed).run()
        assert (world.inversions, world.refused) == ([], [])
        stored = sorted(record for log in world.logs.values() for record in log)
        assert stored == sorted(world.sent), "each once"
        assert all(world.logs[parent + COUNT] for parent in range(COUNT)), "every child took records"
        assert max(world.waited_ms) < 3 * PRODUCER_QUIET_MS
        assert world.boundary_ms.keys() == set(range(COUNT))
        for parent, boundary in world.boundaries.items():
            assert all(record.key % (2 * COUNT) == parent for record in world.logs[parent][boundary:])


def test_without_waiting_for_a_producer_the_order_is_kept_and_records_are_lost() -> None:
    worlds = [DoublingWorld(seed, without_waiting).run() for seed in SEEDS]
    assert not [world.inversions for world in worlds if world.inversions]
    assert sum(bool(world.refused) for world in worlds) > len(SEEDS) / 2


def test_an_early_boundary_loses_records_of_producers_that_send_rarely() -> None:
    worlds = [DoublingWorld(seed, with_early_boundary).run() for seed in MANY]
    assert not [world.inversions for world in worlds if world.inversions]
    assert {record.producer for world in worlds for record in world.refused} <= {4, 5}
    assert any(world.refused for world in worlds)


class NeverRefuses(PartitionSplit):
    """Moved keys are appended to the parent also behind the boundary."""

    def to_parent(self, producer_id: int, has_moved_key: bool, now_ms: int) -> SplitVerdict:
        verdict = super().to_parent(producer_id, has_moved_key, now_ms)
        return APPENDED if verdict is REFUSED else verdict


class TrustsTheFirst(PartitionSplit):
    """A producer that has sent nothing to the parent yet is taken for one that has nothing on its way there."""

    def to_child(self, producer_id: int, now_ms: int) -> SplitVerdict:
        if producer_id not in self._moved_ms:
            self._switched.add(producer_id)
            return APPENDED
        return super().to_child(producer_id, now_ms)


class GoesBack(DoublingWorld):
    """Metadata that goes back to an older count."""

    spread_ms = 2_000


def _without_refusals(began_ms: int) -> PartitionSplit:
    return NeverRefuses(began_ms, producer_quiet_ms=0, boundary_quiet_ms=300)


def _with_trust(began_ms: int) -> PartitionSplit:
    return TrustsTheFirst(began_ms, boundary_quiet_ms=BOUNDARY_MS)


BUGS: dict[str, Callable[[int], object]] = {
    "moved keys behind the boundary": lambda seed: DoublingWorld(seed, _without_refusals).run().inversions,
    "a batch on its way to the parent": lambda seed: DoublingWorld(seed, _with_trust).run().refused,
    "metadata that goes back": lambda seed: GoesBack(seed).run().inversions,
}
"""What is wrong -> what a history shows."""
PLANTED = PlantedBugs("doubling")


@PLANTED.cases(BUGS)
def test_planted_bugs_are_found(bug: str, trial: Trial) -> None:
    for seed in trial.seeds():
        trial.saw(BUGS[bug](seed))


@pytest.fixture
def split() -> PartitionSplit:
    return PartitionSplit(0)


def test_a_producer_is_sent_back_once_and_switches_when_it_is_quiet(split: PartitionSplit) -> None:
    assert split.to_parent(7, False, 100) is APPENDED
    assert split.to_parent(7, True, 200) is SEND_AGAIN
    assert split.to_child(7, 300) is SEND_AGAIN
    assert split.to_parent(7, True, 400) is APPENDED
    assert split.to_child(7, 399 + PRODUCER_QUIET_MS) is SEND_AGAIN
    assert split.to_child(7, 400 + PRODUCER_QUIET_MS) is APPENDED
    assert split.to_parent(7, True, 401 + PRODUCER_QUIET_MS) is REFUSED
    assert split.to_parent(7, False, 401 + PRODUCER_QUIET_MS) is APPENDED
    assert split.to_parent(8, True, 401 + PRODUCER_QUIET_MS) is SEND_AGAIN, "another producer"


def test_a_producer_that_begins_with_the_child_waits_as_long(split: PartitionSplit) -> None:
    assert split.to_child(7, 100) is SEND_AGAIN
    assert split.to_parent(7, True, 150) is APPENDED, "it was on its way"
    assert split.to_child(7, 149 + PRODUCER_QUIET_MS) is SEND_AGAIN
    assert split.to_child(7, 150 + PRODUCER_QUIET_MS) is APPENDED


def test_the_boundary_is_set_when_no_moved_key_came_for_a_time(split: PartitionSplit) -> None:
    split.to_parent(7, True, 1_000)
    split.to_parent(7, False, 2_000)
    split.to_child(9, 999 + BOUNDARY_QUIET_MS)
    assert not split.has_boundary
    assert split.to_child(9, 1_000 + BOUNDARY_QUIET_MS) is APPENDED, "nothing older can follow any more"
    assert split.has_boundary
    assert split.to_parent(7, True, 1_001 + BOUNDARY_QUIET_MS) is REFUSED
