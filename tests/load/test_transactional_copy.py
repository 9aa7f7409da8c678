"""The judge of the transactional copy against planted errors, and what the copiers' reports are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.torture.checker import Name, Read
from tests.transactional_copy.copiers import COPIER_FAULTS, CopierReport, copier_schedule
from tests.transactional_copy.verdict import CopyEvidence, CopyTransaction, KnownOutcome, check_copy


def copies(tag: str, partition: int, *numbers: int) -> frozenset[Name]:
    return frozenset(Name(tag, partition, number) for number in numbers)


def log(partition: int, *values: str | None) -> list[Read]:
    """None: an offset with a marker."""
    return [Read(partition, offset, value) for offset, value in enumerate(values) if value is not None]


SOURCE = [*log(0, *(f"w/0/{number}" for number in range(4))), *log(1, "w/1/0")]
STORED = [*log(0, "a/0/0", "a/0/1", None, "b/0/2", "b/0/3", None, "c/0/2", None, "d/0/3"), *log(1, "c/1/0")]
COMMITTED = [read for read in STORED if not read.value.startswith("b")]
TRANSACTIONS = {
    "a": CopyTransaction(copies("a", 0, 0, 1), KnownOutcome.COMMITTED),
    "b": CopyTransaction(copies("b", 0, 2, 3), KnownOutcome.NEVER),
    "c": CopyTransaction(copies("c", 0, 2) | copies("c", 1, 0), KnownOutcome.COMMITTED),
    "d": CopyTransaction(copies("d", 0, 3), KnownOutcome.ATTEMPTED),
    "e": CopyTransaction(copies("e", 0, 2), KnownOutcome.ATTEMPTED),  # nothing of it arrived
}
CLEAN = CopyEvidence(SOURCE, COMMITTED, STORED, TRANSACTIONS, {0: 4, 1: 1}, {0: 4, 1: 1}, seen=COMMITTED[:3])


def without(tag: str) -> CopyEvidence:
    """Postgres lost this transaction and its records; another one copied them."""
    kept = [read for read in STORED if not read.value.startswith(tag)]
    again = [Read(each.partition, 20 + each.number, f"f/{each.partition}/{each.number}")
             for each in sorted(TRANSACTIONS[tag].names)]  # fmt: skip
    committed = sorted([read for read in COMMITTED if read in kept] + again, key=lambda read: Name.of(read.value)[1:])
    names = frozenset(Name.of(read.value) for read in again)
    transactions = TRANSACTIONS | {"f": CopyTransaction(names, KnownOutcome.COMMITTED)}
    return replace(CLEAN, committed=committed, uncommitted=kept + again, transactions=transactions, seen=())


def test_an_exact_copy_is_clean() -> None:
    assert check_copy(CLEAN).offences == []
    assert check_copy(replace(CLEAN, seen=())).offences == []


def a_doubled_record(clean: CopyEvidence) -> CopyEvidence:
    twice = Read(0, 10, "f/0/3")
    known = dict(clean.transactions) | {"f": CopyTransaction(copies("f", 0, 3), KnownOutcome.COMMITTED)}
    return replace(clean, committed=[*COMMITTED, twice], uncommitted=[*STORED, twice], transactions=known)


def a_record_stored_twice_by_its_producer(clean: CopyEvidence) -> CopyEvidence:
    twice = Read(0, 9, "d/0/3")
    return replace(clean, committed=[*COMMITTED, twice], uncommitted=[*STORED, twice])


def a_lost_record(clean: CopyEvidence) -> CopyEvidence:
    more = [*SOURCE, Read(1, 1, "w/1/1")]
    return replace(clean, source=more, ends={0: 4, 1: 2})


def offsets_ahead_of_the_output(clean: CopyEvidence) -> CopyEvidence:
    return replace(a_lost_record(clean), positions={0: 4, 1: 2})


def an_aborted_record_that_is_shown(clean: CopyEvidence) -> CopyEvidence:
    return replace(clean, committed=STORED, seen=())


def half_of_a_transaction(clean: CopyEvidence) -> CopyEvidence:
    return replace(clean, committed=[read for read in COMMITTED if read.value != "c/1/0"])


def half_of_an_unknown_transaction(clean: CopyEvidence) -> CopyEvidence:
    known = dict(TRANSACTIONS) | {"d": CopyTransaction(copies("d", 0, 3, 4), KnownOutcome.ATTEMPTED)}
    return replace(clean, transactions=known)


def an_acknowledged_transaction_that_is_not_there(clean: CopyEvidence) -> CopyEvidence:
    return without("a")


def one_of_which_only_a_part_is_listed(clean: CopyEvidence) -> CopyEvidence:
    return replace(without("a"), listed=copies("a", 0, 1))


def copies_in_another_order(clean: CopyEvidence) -> CopyEvidence:
    swapped = [COMMITTED[1]._replace(offset=0), COMMITTED[0]._replace(offset=1), *COMMITTED[2:]]
    return replace(clean, committed=swapped, uncommitted=swapped, seen=())


def a_copy_in_another_partition(clean: CopyEvidence) -> CopyEvidence:
    moved = [*COMMITTED[:-1], Read(2, 0, COMMITTED[-1].value)]
    return replace(clean, committed=moved, uncommitted=moved, seen=())


def a_record_that_only_committed_readers_get(clean: CopyEvidence) -> CopyEvidence:
    return replace(clean, uncommitted=STORED[1:])


def a_copy_of_nothing(clean: CopyEvidence) -> CopyEvidence:
    return replace(clean, source=SOURCE[:-1])


def a_transaction_that_nobody_began(clean: CopyEvidence) -> CopyEvidence:
    return replace(clean, transactions={tag: each for tag, each in TRANSACTIONS.items() if tag != "a"})


def offsets_behind(clean: CopyEvidence) -> CopyEvidence:
    return replace(clean, positions={0: 3, 1: 1})


def no_offset_at_all(clean: CopyEvidence) -> CopyEvidence:
    return replace(clean, positions={0: 4})


def an_aborted_record_shown_for_a_while(clean: CopyEvidence) -> CopyEvidence:
    return replace(clean, seen=STORED[:3])


def a_record_that_a_reader_of_the_run_missed(clean: CopyEvidence) -> CopyEvidence:
    return replace(clean, seen=COMMITTED[1:3])


PLANTED: list[tuple[str, Callable[[CopyEvidence], CopyEvidence]]] = [
    ("doubled", a_doubled_record),
    ("doubled", a_record_stored_twice_by_its_producer),
    ("lost", a_lost_record),
    ("positions", a_lost_record),
    ("ahead", offsets_ahead_of_the_output),
    ("exposed", an_aborted_record_that_is_shown),
    ("torn", half_of_a_transaction),
    ("torn", half_of_an_unknown_transaction),
    ("vanished", an_acknowledged_transaction_that_is_not_there),
    ("vanished", one_of_which_only_a_part_is_listed),
    ("disordered", copies_in_another_order),
    ("disordered", a_copy_in_another_partition),
    ("unreal", a_record_that_only_committed_readers_get),
    ("unreal", a_copy_of_nothing),
    ("unreal", a_transaction_that_nobody_began),
    ("positions", offsets_behind),
    ("positions", no_offset_at_all),
    ("retracted", an_aborted_record_shown_for_a_while),
    ("retracted", a_record_that_a_reader_of_the_run_missed),
]


@pytest.mark.requirement("X1")
@pytest.mark.parametrize(("kind", "plant"), PLANTED, ids=lambda each: getattr(each, "__name__", each))
def test_each_planted_error_is_seen(kind: str, plant: Callable[[CopyEvidence], CopyEvidence]) -> None:
    verdict = check_copy(plant(CLEAN))
    assert getattr(verdict, kind), verdict.offences
    assert any(line.startswith(f"{kind}: ") for line in verdict.offences)


def test_an_acknowledged_transaction_may_be_missing_if_it_is_listed() -> None:
    verdict = check_copy(replace(without("a"), listed=TRANSACTIONS["a"].names))
    assert (verdict.offences, verdict.lost_and_listed) == ([], 1)


def test_a_lost_and_listed_end_explains_records_that_are_there() -> None:
    lost = replace(without("a"), uncommitted=[*STORED, *without("a").uncommitted[-2:]])
    assert check_copy(lost).vanished
    assert check_copy(replace(lost, listed_ends={0: [1]})).vanished, "that end is not behind its last record"
    verdict = check_copy(replace(lost, listed_ends={0: [2]}))
    assert (verdict.offences, verdict.lost_and_listed) == ([], 1)


def test_a_report_holds_what_a_copier_knew_of_each_transaction() -> None:
    report = CopierReport("x")
    for line in (
        "begin x.1.1 0:1,2:30", "ending x.1.1", "committed x.1.1",
        "begin x.1.2 0:2", "aborted x.1.2",
        "begin x.1.3 0:2", "ending x.1.3", "again commit _TIMED_OUT", "aborted x.1.3", "over _FENCED",
        "begin x.2.1 0:2",
    ):  # fmt: skip
        report.hear(line)
    outcomes = [each.outcome for each in report.transactions.values()]
    assert outcomes == [KnownOutcome.COMMITTED, KnownOutcome.NEVER, KnownOutcome.ATTEMPTED, KnownOutcome.NEVER]
    assert report.transactions["x.1.1"].names == {Name("x.1.1", 0, 1), Name("x.1.1", 2, 30)}
    assert (report.over, report.again, report.trouble) == ({"_FENCED": 1}, {"commit: _TIMED_OUT": 1}, "")
    report.hear("Traceback (most recent call last):")
    assert report.trouble


def test_a_seed_is_a_schedule_of_copiers() -> None:
    assert copier_schedule(7, 90, 3) == copier_schedule(7, 90, 3) != copier_schedule(8, 90, 3)
    faults = copier_schedule(3, 300, 3)
    assert {fault.kind for fault in faults} == set(COPIER_FAULTS)
    assert {fault.copier for fault in faults} == {0, 1, 2}
    ends = dict.fromkeys(range(3), 0.0)
    for fault in faults:
        assert ends[fault.copier] <= fault.at_s
        assert fault.at_s + fault.seconds <= 300
        ends[fault.copier] = fault.at_s + fault.seconds
