"""Kills and pauses of Headrace and of Apache Kafka: when they strike, what is counted, and a short run on Headrace."""

from __future__ import annotations

import asyncio
import itertools
import signal
from pathlib import Path

import pytest

from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec
from tests.manual_clock import ManualClock
from tests.torture.checker import Read, check
from tests.torture.kills.counts import count_clients, refusals_in
from tests.torture.kills.kafka_servers import PORTS, lasting_ports
from tests.torture.kills.report import print_kills
from tests.torture.kills.run import HEADRACE, KAFKA, KillsOutcome, KillsPlan, run_with_kills
from tests.torture.kills.stored import WrittenRecord, stored_in
from tests.torture.kills.strikes import KILLED_S, NODES, PAUSED_S, REST_S, SESSION_MS, Strike, Striking, strikes
from tests.torture.writers import Report

ONCE = WrittenRecord(Read(0, 0, "a/0/0"), 7, 0, 0)
OTHER = WrittenRecord(Read(0, 1, "a/0/1"), 7, 0, 1)
UNDER_ANOTHER_EPOCH = WrittenRecord(Read(0, 2, "a/0/0"), 7, 1, 0)
UNDER_ANOTHER_ID = WrittenRecord(Read(0, 2, "a/0/0"), 8, 0, 0)
UNDER_THE_SAME = WrittenRecord(Read(0, 2, "a/0/0"), 7, 0, 2)
WITHOUT_AN_ID = ONCE._replace(producer_id=-1, epoch=-1), WrittenRecord(Read(0, 2, "a/0/0"), -1, -1, -1)
LIBRDKAFKA = """
1795769867.1 [thrd:127.0.0.1:1/bootstrap]: 127.0.0.1:1/1: kills [2]: MessageSet with 4 message(s) (MsgId 5, BaseSeq 4) \
encountered error: Broker: Request timed out (actions Retry,MsgPossiblyPersisted)
1795769867.2 [thrd:127.0.0.1:1/bootstrap]: 127.0.0.1:1/1: kills [2]: MessageSet with 4 message(s) (MsgId 5, BaseSeq 4) \
delivered
"""
JAVA = """
08:59:24.001 [main] WARN Sender - [Producer clientId=producer-1] Got error produce response with correlation id 5 on \
topic-partition kills-1, retrying (2147483646 attempts left). Error: REQUEST_TIMED_OUT
08:59:24.002 [main] WARN Sender - [Producer clientId=producer-1] Got error produce response with correlation id 6 on \
topic-partition kills-1, retrying (2147483646 attempts left). Error: NETWORK_EXCEPTION. Error Message: \
Disconnected from node 1
08:59:24.003 [main] WARN Sender - [Producer clientId=producer-1] Got error produce response with correlation id 7 on \
topic-partition kills-1, retrying (2147483646 attempts left). Error: REQUEST_TIMED_OUT. Error Message: Disconnected \
from node 1 due to timeout
"""


class RecordingNode:
    """Notes what is done to it; a start takes `start_s`."""

    def __init__(self, name: str, clock: ManualClock, start_s: float, done: list[tuple[float, str]]) -> None:
        self._name, self._clock, self._start_s, self._done = name, clock, start_s, done

    async def start(self) -> None:
        """Take a while."""
        self._note("start")
        await self._clock.sleep(self._start_s)

    async def kill(self) -> None:
        """Return at once."""
        self._note("kill")

    def signal(self, number: signal.Signals) -> None:
        """Note which one."""
        self._note(number.name)

    def _note(self, what: str) -> None:
        self._done.append((self._clock.monotonic() - 1000.0, f"{self._name} {what}"))


def _report(*lines: str) -> Report:
    report = Report("a")
    for line in lines:
        report.hear(line)
    return report


def _outcome(target: str, stored: list[WrittenRecord], first_offset: int = 0) -> KillsOutcome:
    report = _report(f"ack 0 0 {first_offset}", "ack 0 1 1")
    plan = KillsPlan(seed=1, seconds=1, target=target, directory=Path("unused"))
    return KillsOutcome(plan, target, {}, [report], counts=count_clients([report], stored))


def test_a_seed_is_the_same_strikes_one_at_a_time() -> None:
    assert strikes(7, 300) == strikes(7, 300) != strikes(8, 300)
    for seed in range(20):
        found = strikes(seed, 300)
        assert {strike.kind for strike in found} == {"kill", "pause"}
        assert found[-1].at_s + found[-1].seconds < 300
        for strike, following in itertools.pairwise(found):
            assert following.at_s - strike.at_s - strike.seconds > REST_S[strike.kind][0] - 0.01
    each = [strike for seed in range(20) for strike in strikes(seed, 300)]
    assert {strike.node for strike in each} == set(range(NODES))
    for kind, (least, most) in (("kill", KILLED_S), ("pause", PAUSED_S)):
        assert all(least <= strike.seconds <= most for strike in each if strike.kind == kind)
    assert PAUSED_S[0] > SESSION_MS / 1000, "leaders would stay"


async def test_a_strike_waits_for_the_one_before_and_is_late_then() -> None:
    clock, done, said = ManualClock(), list[tuple[float, str]](), list[str]()
    nodes = [RecordingNode(name, clock, 6.0, done) for name in ("x", "y")]
    striking = Striking(nodes, said.append, clock)
    await clock.run(striking.run([Strike(1.0, "kill", 0, 2.0), Strike(5.0, "pause", 1, 4.0), Strike(20, "kill", 1, 1)]))
    assert done == [
        (1.0, "x kill"),
        (3.0, "x start"),
        (9.0, "y SIGSTOP"),
        (13.0, "y SIGCONT"),
        (20.0, "y kill"),
        (21.0, "y start"),
    ]
    assert (striking.injected, striking.late, striking.latest_s) == ({"kill": 2, "pause": 1}, 1, 4.0)
    assert len(said) == 6


@pytest.mark.parametrize(
    ("stored", "with_bump", "without"),
    [
        ([ONCE, OTHER], 0, 0),
        ([ONCE, OTHER, UNDER_ANOTHER_EPOCH], 1, 0),
        ([ONCE, OTHER, UNDER_ANOTHER_ID], 1, 0),
        ([ONCE, OTHER, UNDER_THE_SAME], 0, 1),
        ([ONCE, OTHER, UNDER_ANOTHER_EPOCH, UNDER_THE_SAME], 0, 1),
        ([ONCE, OTHER, WITHOUT_AN_ID[1]], 0, 1),
        ([WITHOUT_AN_ID[0], OTHER, WITHOUT_AN_ID[1]], 0, 1),
    ],
)
def test_copies_differ_by_id_and_epoch(stored: list[WrittenRecord], with_bump: int, without: int) -> None:
    (counts,) = count_clients([_report("ack 0 0 0", "ack 0 1 1")], stored)
    assert (len(counts.twice_with_bump), len(counts.twice_without)) == (with_bump, without)
    assert (counts.acknowledged, counts.given_up, counts.lost) == (2, 0, [])
    for target in (HEADRACE, KAFKA):
        assert len(_outcome(target, stored).offences) == without


def test_a_client_may_report_the_offset_of_the_second_copy() -> None:
    for stored, offences in (([ONCE, OTHER, UNDER_ANOTHER_EPOCH], 0), ([ONCE, OTHER], 1)):
        outcome = _outcome(HEADRACE, stored, first_offset=2)
        outcome.verdict = check(outcome.reports[0].acknowledged, [each.read for each in stored])
        assert len(outcome.verdict.misplaced) == 1
        assert len(outcome.offences) == offences


def test_what_was_acknowledged_and_is_nowhere_is_lost() -> None:
    (counts,) = count_clients([_report("ack 0 0 0", "ack 0 1 1", "fail 0 2 timed out")], [OTHER])
    assert (counts.lost, counts.given_up) == (["a/0/0"], 1)
    assert counts.wrote_as == {(7, 0): 1}


def test_refused_batches_are_counted_by_reason() -> None:
    assert refusals_in(LIBRDKAFKA) == {"Broker: Request timed out": 1}
    assert refusals_in(JAVA) == {"REQUEST_TIMED_OUT": 1, "NETWORK_EXCEPTION": 1, "timeout": 1}


def test_a_stored_record_has_the_number_that_its_producer_gave_it() -> None:
    records = [Record(offset, 0, None, f"a/3/{offset}".encode()) for offset in (4, 5)]
    batch = encode_batch(records, codec=Codec.NONE, base_offset=4, producer_id=7, producer_epoch=2, base_sequence=9)
    assert list(stored_in(3, memoryview(batch))) == [
        WrittenRecord(Read(3, 4, "a/3/4"), 7, 2, 9),
        WrittenRecord(Read(3, 5, "a/3/5"), 7, 2, 10),
    ]


def test_nodes_get_different_ports() -> None:
    ports = lasting_ports(6)
    assert len(set(ports)) == 6
    assert set(ports) <= set(PORTS)


@pytest.mark.slow
@pytest.mark.requirement("W7")
def test_no_record_is_stored_twice_without_a_bump(tmp_path: Path) -> None:
    plan = KillsPlan(seed=3, seconds=45, target=HEADRACE, directory=tmp_path, rate=60)
    outcome = asyncio.run(run_with_kills(plan, print))
    print_kills(outcome)
    assert outcome.offences == []
    assert outcome.injected.keys() == {"kill", "pause"}
    for counts in outcome.counts:
        assert counts.wrote_as
        assert all(producer_id >= 0 for producer_id, _ in counts.wrote_as)
