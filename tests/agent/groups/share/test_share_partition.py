"""A share-partition compared with its model, in random histories; and planted bugs, which those must find."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.share import share_partition
from headrace.agent.groups.share.in_flight import AckBatch, AckType, AcquireLimits, InFlight, RangeState
from headrace.agent.groups.share.share_partition import Acquired, SharePartition, ShareTally
from headrace.metastore.share_states import KeptRange
from tests.agent.groups.share.share_model import Difference, History
from tests.planted import PlantedBugs, Trial

LIMITS = AcquireLimits(30.0, 5, 2000)
SEEDS = range(60)


@pytest.fixture
def partition() -> SharePartition:
    return SharePartition(0)


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


class _SuspectsTogether(SharePartition):
    """Records of which attempts failed are delivered like all others."""

    def acquire(
        self, now: float, member_id: str, log_end: int, max_records: int, limits: AcquireLimits, **more: bool
    ) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(share_partition, "are_suspects", lambda tries, attempts: False)
            return super().acquire(now, member_id, log_end, max_records, limits, **more)


class _BeyondTheEnd(SharePartition):
    """What became available again is given out, although the group may not read it yet."""

    def acquire(
        self, now: float, member_id: str, log_end: int, max_records: int, limits: AcquireLimits, **more: bool
    ) -> Any:
        return super().acquire(now, member_id, max(log_end, self.end), max_records, limits, **more)


_BUGS: dict[str, type[SharePartition]] = {
    "suspects are delivered together": _SuspectsTogether,
    "records beyond the end are given out": _BeyondTheEnd,
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
def test_a_planted_bug_is_found(bug: str, trial: Trial) -> None:
    for seed in trial.seeds():
        with trial.shown_by(Difference, IndexError, KeyError):
            History(seed, _BUGS[bug]).run()


def test_equal_neighbours_are_one_range_and_a_thousand_acknowledgements_leave_none(partition: SharePartition) -> None:
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


def test_batches_that_do_not_ascend_are_refused(partition: SharePartition) -> None:
    partition.acquire(0.0, "a", 10, 10, LIMITS)
    twice = [AckBatch(3, 5, [4]), AckBatch(5, 6, [1])]
    assert partition.acknowledge(0.0, "a", twice, LIMITS) is ErrorCode.invalid_request
    assert len(partition.ranges) == 1, "nothing changed"


_End = Callable[[SharePartition, str, list[Acquired], AcquireLimits], object]
_ENDS: dict[str, _End] = {
    "lock expiry": lambda partition, member, got, limits: partition.expire(
        partition.next_deadline() or 0.0, limits.attempts
    ),
    "disconnect": lambda partition, member, got, limits: partition.release(member, limits.attempts),
    "release": lambda partition, member, got, limits: partition.acknowledge(
        0.0, member, [AckBatch(each.first, each.last, [2]) for each in got], limits
    ),
}


@pytest.mark.requirement("X12")
@pytest.mark.parametrize("attempts", [3, 5, 10])
@pytest.mark.parametrize("end", _ENDS)
@pytest.mark.parametrize("is_sparing", [False, True])
def test_a_record_that_makes_its_member_fail_uses_up_no_other_attempts(
    attempts: int, end: str, is_sparing: bool
) -> None:
    """An owner that knows only what was stored takes over after each failure."""
    tally, limits, poison = ShareTally(), LIMITS._replace(attempts=attempts), 137
    partition, failed, now = SharePartition(0, (), tally), 0, 0.0
    for turn in range(2_000):
        now += 100.0
        got = partition.acquire(now, f"member-{turn}", 500, 500, limits, is_sparing=is_sparing)
        if not got:
            break
        assert all(each.tries < attempts or each.first == each.last for each in got), "alone in its last attempt"
        if any(each.first <= poison <= each.last for each in got):
            failed += 1
            _ENDS[end](partition, f"member-{turn}", got, limits)
            if end == "lock expiry" or turn % 3 == 0:
                partition = SharePartition(partition.start, partition.kept(), tally)
        else:
            batches = [AckBatch(each.first, each.last, [1]) for each in got]
            assert partition.acknowledge(now, f"member-{turn}", batches, limits) is ErrorCode.none
    assert (partition.start, failed, tally.used_up) == (500, attempts, 1)


def test_deliveries_of_a_batch_shrink_as_in_kafka(partition: SharePartition) -> None:
    deliveries = []
    for turn in range(8):
        (got,) = partition.acquire(float(turn), "a", 20, 20, LIMITS)
        deliveries.append((got.first, got.last, got.tries))
        partition.acknowledge(float(turn), "a", [AckBatch(got.first, got.last, [2])], LIMITS)
    assert deliveries[:5] == [(0, 19, 1), (0, 19, 2), (0, 19, 3), (0, 9, 4), (0, 0, 5)]
    assert deliveries[5:] == [(1, 1, 5), (2, 2, 5), (3, 3, 5)]


@pytest.mark.parametrize(
    ("attempts", "records", "asked", "sizes"),
    [
        (5, 100, 500, [100, 100, 100, 50, 50]),
        (10, 512, 500, [500, 500, 500, 500, 500, 250, 250]),
        (5, 20, 8, [8, 8, 8, 4, 4]),
    ],
)
def test_all_parts_of_a_delivery_that_failed_are_halves_of_it(
    attempts: int, records: int, asked: int, sizes: list[int]
) -> None:
    """A part of it is accepted once it is smaller; the next one is as large."""
    partition, limits = SharePartition(0), LIMITS._replace(attempts=attempts)
    seen = []
    for turn in range(len(sizes)):
        (got,) = partition.acquire(float(turn), "a", min(records, asked), asked, limits)
        seen.append(got.records)
        kind = 1 if turn + 2 == len(sizes) else 2
        partition.acknowledge(float(turn), "a", [AckBatch(got.first, got.last, [kind])], limits)
    assert seen == sizes


def test_what_was_given_back_is_no_part_of_a_delivery(partition: SharePartition) -> None:
    partition.acquire(0.0, "a", 1500, 500, LIMITS, takes_batches=True)
    partition.give_back("a", [(500, 1499)])
    for turn in range(3):
        partition.release("a", LIMITS.attempts)
        (got,) = partition.acquire(float(turn), "a", 500, 500, LIMITS)
    assert (got.first, got.last, got.tries) == (0, 249, 4)


def test_records_are_counted_and_not_the_offsets_between_them(partition: SharePartition) -> None:
    partition.acquire(0.0, "a", 20, 10, LIMITS)
    partition.acknowledge(0.0, "a", [AckBatch(0, 9, [1, 2] * 5)], LIMITS)
    got = partition.acquire(0.0, "a", 20, 10, LIMITS)
    assert sum(each.last - each.first + 1 for each in got) == 10
    assert (got[0].first, got[-1].last) == (1, 14)


def test_nothing_at_or_beyond_the_end_that_the_group_may_read_is_given_out(partition: SharePartition) -> None:
    partition.acquire(0.0, "a", 6, 6, LIMITS)
    partition.release("a", LIMITS.attempts)
    assert partition.acquire(1.0, "a", 0, 500, LIMITS) == []
    assert partition.acquire(1.0, "a", 2, 500, LIMITS) == [Acquired(0, 1, 2)]


def test_an_acknowledgement_of_what_another_owner_gave_is_no_invalid_request() -> None:
    """As Kafka: INVALID_REQUEST is for what the log does not have."""
    new = SharePartition(0)
    assert new.acknowledge(0.0, "a", [AckBatch(0, 4, [1])], LIMITS) is ErrorCode.invalid_record_state
    new.acquire(0.0, "a", 10, 5, LIMITS)
    assert new.acknowledge(0.0, "a", [AckBatch(5, 5, [1])], LIMITS) is ErrorCode.invalid_record_state
    assert new.acknowledge(0.0, "a", [AckBatch(20, 25, [1])], LIMITS) is ErrorCode.invalid_request


def test_huge_ranges_cost_what_small_ones_do(partition: SharePartition) -> None:
    partition.acquire(0.0, "a", 10, 10, LIMITS)
    huge = AckBatch(0, 2**62, [1])
    assert partition.acknowledge(0.0, "a", [huge], LIMITS) is ErrorCode.invalid_request
    assert partition.start == 0


def test_the_module_says_what_a_type_is() -> None:
    assert [kind.name for kind in AckType] == ["GAP", "ACCEPT", "RELEASE", "REJECT", "RENEW"]


def test_a_member_renews_only_if_the_group_may(partition: SharePartition) -> None:
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
