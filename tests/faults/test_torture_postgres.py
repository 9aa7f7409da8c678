"""Postgres is killed, promoted, restored and there twice under the torture run's clients, and the parts that do it.

Fault model: tests/torture/drills.py. What may be lost is what `headrace audit --lost` lists, and only by a drill that
loses commits: tests/torture/checker.py judges each acknowledged record.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from tests.torture.checker import Name, Read, check
from tests.torture.commands import LostReport
from tests.torture.drills import DRILLS, KEEPS, LOSES, drills
from tests.torture.faults import BUCKET_FAULTS, KINDS, schedule
from tests.torture.report import print_outcome
from tests.torture.run import TortureOutcome, TorturePlan, torture
from tests.torture.small_disk import SmallDisk, why_missing
from tests.torture.unlistable import RECORDING_S, Loss, unlistable

PYTHON_CLIENTS = ("aiokafka", "confluent")


def _run(plan: TorturePlan) -> TortureOutcome:
    outcome = asyncio.run(torture(plan))
    print_outcome(outcome)
    assert outcome.offences == []
    assert outcome.injected.keys() >= set(plan.drills)
    return outcome


@pytest.mark.slow
@pytest.mark.requirement("W1", "W3", "W7", "X4")
def test_what_only_kills_and_promotes_with_synchronous_replication_loses_nothing() -> None:
    keeps = [drill for drill in KEEPS if drill != "disk_full" or not why_missing()]
    plan = TorturePlan(11, 1, (), drills=keeps, clients=PYTHON_CLIENTS, holds_snapshot=True)
    outcome = _run(plan)
    assert outcome.verdict.lost_and_listed == 0
    assert not any(report.failed for report in outcome.reports)
    assert outcome.snapshots_held > 1


@pytest.mark.slow
@pytest.mark.requirement("W1", "W3", "W7", "X4")
def test_a_synchronous_promotion_loses_nothing_and_what_a_split_primary_loses_is_listed() -> None:
    """A drill compares the promoted server with what its primary had, and counts connections when the address moves;
    the split is judged by the records."""
    chosen = ("promote_sync", "split", "moved_address")
    outcome = _run(TorturePlan(12, 1, (), drills=chosen, clients=PYTHON_CLIENTS))
    assert 0 < outcome.verdict.lost_and_listed <= outcome.listed.records


@pytest.mark.slow
@pytest.mark.requirement("W1", "W3", "W7", "X4")
def test_every_drill_among_every_fault() -> None:
    chosen = [drill for drill in DRILLS if drill != "disk_full" or not why_missing()]
    _run(TorturePlan(13, 120, (*KINDS, *BUCKET_FAULTS), drills=chosen, holds_snapshot=True))


def test_an_acknowledged_record_may_be_missing_only_if_it_is_listed() -> None:
    acknowledged = {Name("a", 0, 0): 0, Name("a", 0, 1): 1, Name("a", 0, 2): 2}
    read = [Read(0, 0, "a/0/0")]
    listed = {Name("a", 0, 1), Name("b", 0, 7)}
    verdict = check(acknowledged, read, listed)
    assert verdict.lost == ["lost: value=a/0/2 offset=2"]
    assert verdict.lost_and_listed == 1
    assert check(acknowledged, read, listed | {Name("a", 0, 2)}).offences == []


def test_each_listing_of_an_offset_without_bytes_excuses_one_record() -> None:
    acknowledged = {Name("a", 0, 0): 0, Name("a", 0, 1): 1, Name("b", 0, 0): 1, Name("c", 0, 0): 1}
    report, read = LostReport(nowhere=Counter({(0, 1): 1, (1, 1): 1})), [Read(0, 0, "a/0/0"), Read(0, 1, "c/0/0")]
    assert len(check(acknowledged, read, report.listed(acknowledged, read)).lost) == 1
    report.nowhere[0, 1] += 1
    assert check(acknowledged, read, report.listed(acknowledged, read)).offences == []


def test_only_what_a_killed_agent_alone_knew_may_be_missing_and_unlisted() -> None:
    names = [Name("a", 0, number) for number in range(4)]
    heard = dict(zip(names, (9.0, 11.0, 14.0, 30.0), strict=True))
    loss, acknowledged = Loss(10.0, 15.0), {name: name.number for name in names}
    assert unlistable(heard, [loss], []) == unlistable(heard, [loss], [9.5, 15.1 + RECORDING_S]) == set()
    assert unlistable(heard, [loss], [12.0]) == {names[1]}
    assert unlistable(heard, [loss], [16.0]) == {names[1], names[2]}
    verdict = check(acknowledged, [Read(0, 0, "a/0/0")], {names[2]}, {names[1], names[2]})
    assert verdict.lost == ["lost: value=a/0/3 offset=3"]
    assert (verdict.lost_and_listed, verdict.lost_with_agent) == (1, 1)


def test_another_record_at_the_offset_of_a_lost_one_is_fine_and_a_kept_one_elsewhere_is_not() -> None:
    acknowledged = {Name("a", 0, 0): 0, Name("a", 0, 1): 1, Name("a", 0, 2): 1}
    read = [Read(0, 0, "a/0/0"), Read(0, 1, "a/0/2")]
    assert check(acknowledged, read, {Name("a", 0, 1)}).offences == []
    assert check(acknowledged | {Name("a", 0, 2): 2}, read, {Name("a", 0, 1)}).misplaced


def test_drills_are_a_function_of_the_seed_and_each_comes_before_any_comes_again() -> None:
    first = list(islice(drills(3, DRILLS), 2 * len(DRILLS)))
    assert first == list(islice(drills(3, DRILLS), 2 * len(DRILLS)))
    assert first != list(islice(drills(4, DRILLS), 2 * len(DRILLS)))
    assert {drill.kind for drill in first[: len(DRILLS)]} == set(DRILLS) == {*KEEPS, *LOSES}
    assert list(drills(1, ())) == []


def test_a_store_that_slows_down_is_struck_alone() -> None:
    struck = [fault for fault in schedule(1, 60, (*KINDS, *BUCKET_FAULTS)) if fault.kind in BUCKET_FAULTS]
    assert struck
    assert {fault.target for fault in struck} == {"s3"}
    assert schedule(1, 60, ()) == []


def test_a_small_disk_is_full_until_it_is_freed(tmp_path: Path) -> None:
    if why_missing():
        pytest.skip("needs mkfs.ext4 and a loop device" if os.geteuid() == 0 else "needs root")
    with SmallDisk(tmp_path, 8 * 1024**2) as disk:
        disk.fill()
        with pytest.raises(OSError, match="No space left") as refused:
            (disk.path / "file").write_bytes(bytes(100_000))
        assert refused.value.errno == errno.ENOSPC
        disk.free()
        (disk.path / "file").write_bytes(bytes(100_000))
    assert not list((tmp_path / "disk").iterdir())
