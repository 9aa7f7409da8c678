"""A share-partition compared with its model, in random histories; and planted bugs, which those must find."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.share import share_partition
from headrace.agent.groups.share.in_flight import InFlight, RangeState
from headrace.agent.groups.share.share_partition import AckBatch, AcquireLimits, SharePartition, ShareTally
from headrace.metastore.share_states import KeptRange
from tests.agent.groups.share.share_model import Difference, History
from tests.planted import PlantedBugs, Report, Trial

LIMITS = AcquireLimits(30.0, 5, 2000)
SEEDS = range(60)


@pytest.mark.requirement("X12")
def test_ranges_do_what_the_model_does_for_each_record() -> None:
    for seed in SEEDS:
        try:
            History(seed).run()
        except Difference as difference:
            pytest.fail(f"seed={seed}: {difference}")


class _AnyMember(SharePartition):
    """A member acknowledges what another one has acquired."""

    def acknowledge(
        self, now: float, member_id: str, batches: Iterable[AckBatch], limits: AcquireLimits, **more: bool
    ) -> ErrorCode:
        batches = list(batches)
        owners = [each.member_id for each in self.ranges for b in batches if each.first <= b.first <= each.last]
        return super().acknowledge(now, owners[0] if owners else member_id, batches, limits)


class _LateLocks(SharePartition):
    """A lock does not expire."""

    def expire(self, now: float, attempts: int) -> bool:
        return False


class _AcceptIsLost(SharePartition):
    """The next owner does not learn of what is done."""

    def kept(self) -> list[KeptRange]:
        return [each for each in super().kept() if not each.is_done]


class _CountsAreLost(SharePartition):
    """The next owner begins to count attempts again."""

    def kept(self) -> list[KeptRange]:
        return [each for each in super().kept() if each.is_done]


class _HalfApplied(SharePartition):
    """A refused acknowledgement leaves its first batch applied."""

    def acknowledge(
        self, now: float, member_id: str, batches: Iterable[AckBatch], limits: AcquireLimits, **more: bool
    ) -> ErrorCode:
        codes = [super(_HalfApplied, self).acknowledge(now, member_id, [batch], limits) for batch in batches]
        return next((code for code in codes if code is not ErrorCode.none), ErrorCode.none)


class _NoAttemptIsTheLast(SharePartition):
    """Records are given out without end."""

    def release(self, member_id: str, attempts: int) -> bool:
        return super().release(member_id, 1000)


class _StartStaysBehind(SharePartition):
    """The log start moves, and what was before it is given out."""

    def log_start_moved(self, log_start: int) -> None:
        self.changes += 1


class _GivenBackCounts(SharePartition):
    """What was never sent counts as an attempt."""

    def give_back(self, member_id: str, ranges: Iterable[tuple[int, int]], *, is_done: bool = False) -> None:
        if is_done:
            super().give_back(member_id, ranges, is_done=True)
        else:
            mine = [r for r in self.ranges if r.member_id == member_id]
            counts = {r.first: r.tries for r in mine}
            super().give_back(member_id, ranges)
            self._settle([e._replace(tries=counts.get(e.first, e.tries)) for e in self.ranges])


class _UnmarkedExpiry(SharePartition):
    """The end of a record's attempts is not stored."""

    def _free(self, is_wanted: Callable[[InFlight], bool], attempts: int) -> bool:
        changes = self.changes
        freed = super()._free(is_wanted, attempts)
        self.changes = changes
        return freed


class _MoreThanAsked(SharePartition):
    """One record more than may be in flight."""

    def acquire(
        self, now: float, member_id: str, log_end: int, max_records: int, limits: AcquireLimits, **more: bool
    ) -> Any:
        return super().acquire(now, member_id, log_end, max_records, limits._replace(in_flight=limits.in_flight + 1))


class _EndsMeet(SharePartition):
    """Ranges of different members are joined."""

    def _settle(self, ranges: Iterable[InFlight]) -> None:
        before: list[InFlight] = []
        for each in ranges:
            if before and before[-1].state is each.state is RangeState.ACQUIRED:
                each = each._replace(member_id=before[-1].member_id)
            before.append(each)
        super()._settle(before)


_BUGS: dict[str, type[SharePartition]] = {
    "any member may acknowledge": _AnyMember,
    "locks do not expire": _LateLocks,
    "the next owner forgets what is done": _AcceptIsLost,
    "the next owner forgets attempts": _CountsAreLost,
    "a refused acknowledgement is half applied": _HalfApplied,
    "attempts do not end": _NoAttemptIsTheLast,
    "the log start is ignored": _StartStaysBehind,
    "what was given back counts": _GivenBackCounts,
    "an end of attempts is not stored": _UnmarkedExpiry,
    "one more is in flight": _MoreThanAsked,
    "ranges of two members are joined": _EndsMeet,
}
BUGS = PlantedBugs("share partitions")


@BUGS.cases(_BUGS)
def test_a_planted_bug_is_found(bug: str, trial: Trial, record_property: Report) -> None:
    for seed in trial.seeds(record_property):
        try:
            History(seed, _BUGS[bug]).run()
        except (Difference, IndexError, KeyError) as found:
            trial.saw(found)


def test_equal_neighbours_are_one_range_and_a_thousand_acknowledgements_leave_none() -> None:
    partition = SharePartition(0)
    (got,) = partition.acquire(0.0, "a", 1000, 1000, LIMITS)
    assert (got.first, got.last, got.tries) == (0, 999, 1)
    for offset in range(1, 1000):
        assert partition.acknowledge(1.0, "a", [AckBatch(offset, offset, [1])], LIMITS) is ErrorCode.none
    assert len(partition.ranges) == 2
    assert partition.done_after_start() == 999
    assert partition.acknowledge(1.0, "a", [AckBatch(0, 0, [3])], LIMITS) is ErrorCode.none
    assert (partition.start, partition.end, len(partition.ranges)) == (1000, 1000, 0)


def _calls(records: int, work: Callable[[SharePartition], object]) -> int:
    """Return how many functions run while `work` is done in a partition of so many records."""
    partition, limits = SharePartition(0), LIMITS._replace(attempts=1, in_flight=records)
    partition.acquire(0.0, "a", records, records, limits)
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work(partition)
    finally:
        sys.setprofile(before)
    return count


def test_the_work_of_many_types_or_ranges_grows_with_their_number_and_not_with_its_square() -> None:
    def acknowledge(partition: SharePartition) -> None:
        types = [each % 2 * 2 + 2 for each in range(partition.end)]  # RELEASE, RENEW
        limits = LIMITS._replace(attempts=1)
        assert partition.acknowledge(1.0, "a", [AckBatch(0, partition.end - 1, types)], limits) is ErrorCode.none

    def give_back(partition: SharePartition) -> None:
        partition.give_back("a", [(each, each) for each in range(0, partition.end, 2)])
        assert len(partition.ranges) == partition.end

    for work in (acknowledge, give_back):
        assert _calls(800, work) < 3 * _calls(400, work)


def test_batches_that_do_not_ascend_are_refused() -> None:
    partition = SharePartition(0)
    partition.acquire(0.0, "a", 10, 10, LIMITS)
    twice = [AckBatch(3, 5, [4]), AckBatch(5, 6, [1])]
    assert partition.acknowledge(0.0, "a", twice, LIMITS) is ErrorCode.invalid_request
    assert len(partition.ranges) == 1, "nothing changed"


def test_huge_ranges_cost_what_small_ones_do() -> None:
    partition = SharePartition(0)
    partition.acquire(0.0, "a", 10, 10, LIMITS)
    huge = AckBatch(0, 2**62, [1])
    assert partition.acknowledge(0.0, "a", [huge], LIMITS) is ErrorCode.invalid_request
    assert partition.start == 0


def test_the_module_says_what_a_type_is() -> None:
    assert [kind.name for kind in share_partition.AckType] == ["GAP", "ACCEPT", "RELEASE", "REJECT", "RENEW"]


def test_a_member_renews_only_if_the_group_may() -> None:
    partition = SharePartition(0)
    partition.acquire(0.0, "a", 10, 10, LIMITS)
    fixed = LIMITS._replace(may_renew=False)
    assert partition.acknowledge(20.0, "a", [AckBatch(0, 1, [1, 4])], fixed) is ErrorCode.invalid_record_state
    assert (partition.start, partition.next_deadline()) == (0, 30.0), "nothing changed"
    assert partition.acknowledge(20.0, "a", [AckBatch(0, 9, [4])], LIMITS) is ErrorCode.none
    assert partition.next_deadline() == 50.0


def test_lost_locks_and_used_up_attempts_are_counted() -> None:
    tally = ShareTally()
    partition, twice = SharePartition(0, (), tally), LIMITS._replace(attempts=2)
    partition.acquire(0.0, "a", 10, 4, twice)
    partition.expire(30.0, twice.attempts)
    assert (tally.timed_out, tally.used_up) == (4, 0)
    partition.acquire(30.0, "a", 4, 4, twice)
    assert partition.acknowledge(31.0, "a", [AckBatch(0, 0, [2]), AckBatch(1, 1, [1])], twice) is ErrorCode.none
    assert (tally.timed_out, tally.used_up) == (4, 1), "one released it, one accepted it"
    assert partition.release("a", twice.attempts)
    assert (tally.timed_out, tally.used_up, partition.start) == (4, 3, 4)
