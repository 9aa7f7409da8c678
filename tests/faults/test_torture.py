"""A short torture run with whichever of the four clients are installed, and the parts that judge it.

Fault model: tests/torture/faults.py, every kind, most of them on every side. Postgres with fsync, a real S3
server where installed. The two Python clients are always there; which others took part is printed.
"""

from __future__ import annotations

import asyncio

import confluent_kafka
import pytest

from tests.faults.forked_torture import ForkedAgent
from tests.patch import Patch
from tests.torture import cluster, run
from tests.torture.checker import Name, Read, check, compare
from tests.torture.faults import BEHIND_AGENTS, BUCKET_FAULTS, GAP_MEAN_S, KINDS, LINK_FAULTS, STEADY_KINDS, schedule
from tests.torture.pacing import NOWHERE
from tests.torture.reading import read_with_confluent
from tests.torture.report import print_outcome
from tests.torture.run import LONG_LEASES, TortureOutcome, TorturePlan, torture
from tests.torture.servers import CREDENTIALS, NEEDS, STORES
from tests.torture.writers import Report

RUNS = [(4, 0.4, 16105, 40), pytest.param(15, GAP_MEAN_S, 2773, 250, marks=pytest.mark.slow)]
"""Seconds, seconds between faults, seed and records/s of each client: the faults of each run are of every kind."""
ALWAYS = {"aiokafka", "confluent"}
FOUR = ALWAYS | {"java", "kafkajs"}
CLEAN = [Read(0, 0, "a/0/0"), Read(0, 1, "b/0/0"), Read(0, 2, "a/0/1"), Read(1, 0, "a/1/0")]
ACKNOWLEDGED = {Name("a", 0, 0): 0, Name("b", 0, 0): 1, Name("a", 0, 1): 2, Name("a", 1, 0): 0}


@pytest.mark.requirement("W13")
@pytest.mark.parametrize(("seconds", "gap_s", "seed", "rate"), RUNS)
def test_nothing_is_lost_doubled_or_out_of_order(
    seconds: int, gap_s: float, seed: int, rate: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not request.node.get_closest_marker("slow"):
        monkeypatch.setattr(cluster, "ProxiedAgent", ForkedAgent)
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
    outcome = asyncio.run(torture(TorturePlan(seed=seed, seconds=seconds, gap_s=gap_s, rate=rate)))
    print_outcome(outcome)

    assert outcome.offences == []
    assert {fault.split()[0] for fault in outcome.injected} == set(KINDS)
    assert outcome.struck > 0, "no fault reached a request"
    reports = {report.producer: report for report in outcome.reports}
    assert reports.keys() >= ALWAYS
    assert all(len(report.acknowledged) + len(report.failed) == report.sent > 0 for report in outcome.reports)
    assert not any(reports[name].failed for name in reports.keys() - {"kafkajs"}), "gave up before its time"
    if outcome.missing:
        pytest.skip(next(iter(outcome.missing.values())))  # clean, but not with four clients
    assert reports.keys() == FOUR


@pytest.mark.slow
@pytest.mark.requirement("X15")
@pytest.mark.parametrize(
    "store", [pytest.param(name, marks=pytest.mark.needs(NEEDS[name])) for name in STORES if name != "s3"]
)
def test_nothing_is_lost_with_a_bucket_on_another_cloud(store: str) -> None:
    outcome = asyncio.run(torture(TorturePlan(seed=1515, seconds=20, kinds=(*KINDS, *BUCKET_FAULTS), store=store)))
    print_outcome(outcome)
    assert outcome.offences == []
    assert outcome.struck > 0, "no fault reached a request"


@pytest.mark.slow
def test_one_record_that_is_stored_twice_fails_a_run(patch: Patch) -> None:
    """The planted bug of W13: after a run without faults, a stored record is appended again, under no producer id."""
    appended: list[Read] = []

    def read_after_a_duplicate(bootstrap: str, topic: str, partitions: int) -> list[Read]:
        twice = read_with_confluent(bootstrap, topic, partitions)[0]
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        producer.produce(topic, twice.value.encode(), partition=twice.partition)
        assert producer.flush(300) == 0
        appended.append(twice)
        return read_with_confluent(bootstrap, topic, partitions)

    patch.replace(run, "read_with_confluent", read_after_a_duplicate)
    outcome = asyncio.run(torture(TorturePlan(seed=1, seconds=1, kinds=(), clients=("aiokafka",))))
    (twice,) = appended
    (offence,) = outcome.offences
    assert offence.startswith(f"duplicated: value={twice.value} offsets={twice.offset},")


def test_a_clean_history_is_clean() -> None:
    verdict = check(ACKNOWLEDGED, CLEAN)
    assert (verdict.offences, verdict.read, verdict.unacknowledged) == ([], 4, 0)
    assert compare(CLEAN, sorted(CLEAN)) == []


def test_unacknowledged_records_are_accepted_once_and_in_order() -> None:
    verdict = check({Name("a", 0, 0): 0}, CLEAN)
    assert (verdict.offences, verdict.unacknowledged) == ([], 3)


def test_a_record_acknowledged_nowhere_must_be_there_and_in_order() -> None:
    acknowledged = ACKNOWLEDGED | {Name("a", 0, 0): NOWHERE}
    assert check(acknowledged, CLEAN).offences == []
    swapped = [Read(0, 0, "a/0/1"), CLEAN[1], Read(0, 2, "a/0/0"), CLEAN[3]]
    assert check(acknowledged, swapped).disordered
    assert check(acknowledged, [CLEAN[1]._replace(offset=0), CLEAN[3]]).lost


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("lost", CLEAN[:2] + CLEAN[3:]),
        ("duplicated", [*CLEAN, Read(1, 1, "a/1/0")]),
        ("disordered", [Read(0, 0, "a/0/1"), Read(0, 1, "b/0/0"), Read(0, 2, "a/0/0"), CLEAN[3]]),
        ("misplaced", [CLEAN[1]._replace(offset=0), CLEAN[0]._replace(offset=1), *CLEAN[2:]]),
        ("misplaced", [*CLEAN, Read(1, 1, "a/0/7")]),
        ("gaps", [*CLEAN, Read(1, 3, "a/1/1")]),
    ],
)
def test_each_offence_is_seen(kind: str, read: list[Read]) -> None:
    assert getattr(check(ACKNOWLEDGED, read), kind)


def test_consumers_that_disagree_are_seen() -> None:
    assert compare(CLEAN, CLEAN[:-1]) == ["consumers disagree: partition=1 offset=0 a/1/0 None"]
    assert len(compare(CLEAN, [*CLEAN[:-1], Read(1, 0, "a/1/9")])) == 1


def test_a_seed_is_a_schedule() -> None:
    assert schedule(7, 60) == schedule(7, 60) != schedule(8, 60)
    struck = {fault.kind for seed in range(5) for fault in schedule(seed, 60)}
    assert struck == set(KINDS)
    assert {fault.kind for fault in schedule(1, 60, LINK_FAULTS)} <= set(LINK_FAULTS)
    ends: dict[str, float] = {}
    for fault in schedule(3, 120):
        assert fault.at_s >= ends.get(fault.target, 0.0)
        assert fault.at_s + fault.seconds <= 120
        ends[fault.target] = fault.at_s + fault.seconds


def test_while_leaders_stay_only_what_is_behind_agents_is_struck() -> None:
    faults = [fault for seed in range(20) for fault in schedule(seed, 60, STEADY_KINDS, BEHIND_AGENTS)]
    assert {fault.target for fault in faults} == set(BEHIND_AGENTS)
    assert {fault.kind for fault in faults} == set(STEADY_KINDS)
    assert max(fault.seconds for fault in faults) < LONG_LEASES["broker.session.timeout.ms"] / 1000 / 2


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("leaders_stay", [True, False])
def test_while_leaders_stay_another_epoch_fails_a_run(leaders_stay: bool) -> None:
    report = Report("confluent")
    report.hear("ack 1 2 30")
    report.hear("over skipped sequence numbers")
    plan = TorturePlan(seed=1, seconds=1, leaders_stay=leaders_stay)
    outcome = TortureOutcome(plan, "s3", {}, [report], highest_epoch=1)
    assert outcome.offences == leaders_stay * [
        "confluent began again: skipped sequence numbers",
        "a producer began another epoch: highest epoch 1",
    ]


def test_a_writer_s_report_holds_what_it_said_and_nothing_else() -> None:
    report = Report("x")
    for line in ("ack 1 2 30", "ack 1 4 -1", "implied 1", "over timed out: 1", "fail 1 3 timed out, twice", "end 2 7"):
        report.hear(line)
    assert report.acknowledged == {Name("x", 1, 2): 30, Name("x", 1, 4): NOWHERE}
    assert report.placeless == report.implied == 1
    assert report.started_over == ["timed out: 1"]
    assert report.failed == {Name("x", 1, 3): "timed out, twice"}
    assert (report.sent, report.retries, report.trouble) == (2, 7, "")
    report.hear("Exception in thread main")
    assert report.trouble


@pytest.mark.parametrize(
    ("placed", "overtaken", "implied", "is_fine"),
    [(99, 1, 0, True), (98, 2, 0, False), (98, 2, 1, True), (99, 1, 2, False)],
)
def test_few_records_may_be_acknowledged_without_an_offset(
    placed: int, overtaken: int, implied: int, is_fine: bool
) -> None:
    report = Report("java", implied=implied)
    for number in range(placed + overtaken):
        report.hear(f"ack 0 {number} {number if number < placed else NOWHERE}")
    assert (report.why_placeless() == "") is is_fine
