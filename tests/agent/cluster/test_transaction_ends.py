"""The active controller's rounds for transactions: what is late, what is unused, and how often it looks."""

from __future__ import annotations

from typing import Any, cast

from prometheus_client import CollectorRegistry

from headrace.agent.cluster.controller.completing_steps import (
    FORGOTTEN_PER_CALL,
    PER_ROUND,
    EndingTimes,
    TransactionEnds,
)
from headrace.agent.cluster.controller.controller import controller_steps
from headrace.agent.cluster.controller.rounds import ControllerSteps
from headrace.agent.cluster.follower import MetadataFollower
from headrace.config.settings import Settings
from headrace.metastore.api.transactions import LateTransaction, OpenTransactions
from headrace.storage.errors import InvalidError, UnavailableError
from headrace.storage.supervision import Supervisor
from load.contexts import a_context
from tests.manual_clock import ManualClock


class Rows:
    """What the metastore has: late transactions, of which some end by themselves, and unused ids."""

    def __init__(self) -> None:
        self.late: list[str] = []
        self.gone: set[str] = set()
        self.unused = 0
        self.is_failing = False
        self.bad: set[str] = set()
        self.looks: list[tuple[str, int]] = []

    async def open_transactions(self, most: int) -> OpenTransactions:
        self.looks.append(("late", most))
        late = [LateTransaction(name, 0) for name in self.late[:most]]
        return OpenTransactions(len(self.late) + 1, 7_500, len(self.late), late)

    async def time_out_transaction(self, late: LateTransaction) -> bool:
        if self.is_failing:
            raise UnavailableError("planned")
        if late.transactional_id in self.bad:
            raise InvalidError("planned: smallint out of range")
        self.late.remove(late.transactional_id)
        return late.transactional_id not in self.gone

    async def expire_transactional_ids(self, expiration_ms: int, most: int) -> int:
        self.looks.append(("unused", expiration_ms))
        forgotten = min(most, self.unused)
        self.unused -= forgotten
        return forgotten


def rounds(
    rows: Rows, clock: ManualClock, times: EndingTimes | None = None, registry: CollectorRegistry | None = None
) -> ControllerSteps:
    """The rows of the controller's table that end something."""
    api, registry = cast(Any, rows), registry or CollectorRegistry()
    follower = MetadataFollower(api)
    ends = TransactionEnds(api, lambda: times or EndingTimes.of(Settings()), registry)
    table = controller_steps(a_context(api, clock, registry=registry), follower, cast(Any, None), ends=ends)
    return ControllerSteps(table[-2:], follower, clock, Supervisor(clock))


async def test_it_looks_at_kafkas_intervals(fake_clock: ManualClock) -> None:
    rows = Rows()
    steps = rounds(rows, fake_clock)
    rows.late, rows.gone = ["a", "b"], {"b"}
    await steps.run(1)
    assert rows.looks == [("late", PER_ROUND), ("unused", 604_800_000)], "a new controller looks at once"
    assert rows.late == []
    await fake_clock.advance(9.0)
    await steps.run(1)
    assert len(rows.looks) == 2
    await fake_clock.advance(1.0)
    await steps.run(1)
    await steps.run(1)
    assert rows.looks[2:] == [("late", PER_ROUND)]
    await fake_clock.advance(3_590.0)
    await steps.run(1)
    assert rows.looks[3:] == [("late", PER_ROUND), ("unused", 604_800_000)]


async def test_what_is_left_is_done_in_the_next_round(fake_clock: ManualClock) -> None:
    rows = Rows()
    steps = rounds(rows, fake_clock, EndingTimes(10, 10, 1))
    rows.late, rows.unused = [str(number) for number in range(PER_ROUND + 1)], FORGOTTEN_PER_CALL + 1
    await fake_clock.advance(1.0)
    await steps.run(1)
    assert (len(rows.late), rows.unused) == (1, 1)
    await steps.run(1)
    assert (len(rows.late), rows.unused) == (0, 0)
    await steps.run(1)
    assert len(rows.looks) == 4


async def test_its_look_is_what_the_metrics_show_while_it_is_active(fake_clock: ManualClock) -> None:
    rows, registry = Rows(), CollectorRegistry()
    steps = rounds(rows, fake_clock, registry=registry)
    rows.late, rows.gone = ["a", "b"], {"b"}
    await fake_clock.advance(10.0)
    await steps.run(1)

    def shown() -> list[float | None]:
        names = ("open", "oldest_seconds", "late", "timed_out_total")
        return [registry.get_sample_value(f"headrace_transactions_{name}") for name in names]

    assert shown() == [3, 7.5, 0, 1]
    rows.late, rows.is_failing = ["c", "d"], True
    await fake_clock.advance(10.0)
    await steps.run(1)
    assert shown() == [3, 7.5, 2, 1], "they hang"
    steps.stand_by()
    assert shown() == [0, 0, 0, 1]
    assert len(rows.looks) == 3


async def test_transactions_that_cannot_be_ended_hold_up_no_other(fake_clock: ManualClock) -> None:
    """Also if there are more of them than one look takes, and they are the oldest."""
    rows, registry = Rows(), CollectorRegistry()
    steps = rounds(rows, fake_clock, EndingTimes(10, 10, 1), registry)
    bad = [f"bad-{number:03}" for number in range(PER_ROUND + 10)]
    rows.late, rows.bad, rows.unused = [*bad, "good-1", "good-2"], set(bad), 1
    await fake_clock.advance(1.0)
    for _ in range(3):
        await steps.run(1)
    assert rows.late == bad
    assert rows.unused == 0, "unused ids are forgotten all the same"
    assert registry.get_sample_value("headrace_transactions_unending") == len(bad)
    rows.bad = set()
    for _ in range(3):
        await fake_clock.advance(1.0)
        await steps.run(1)
    assert not rows.late
    assert registry.get_sample_value("headrace_transactions_unending") == 0
