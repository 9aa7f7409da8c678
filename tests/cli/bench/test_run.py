"""The order of runs, waiting for idle targets, and what makes a run invalid."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.cli.bench.orders import ConsumeAnswer, ProduceAnswer
from headrace.cli.bench.rows import pick
from headrace.cli.bench.run import PATIENCE_SECONDS, schedule, until_idle
from headrace.cli.bench.target_bench import Bounds, TargetBench, refuse_failures, refuse_losses
from headrace.cli.bench.targets import MeasuredTarget
from headrace.cli.bench.window import Window
from headrace.storage.errors import CorruptError, UnavailableError
from tests.manual_clock import ManualClock


def _bench(name: str) -> TargetBench:
    return TargetBench(MeasuredTarget(name, "a:1", ""), Bounds(1.0, 1, 1), ManualClock(), None)


def _read(records: int, **counts: Any) -> ConsumeAnswer:
    return ConsumeAnswer(records=records, bytes=0, seconds=1.0, numbers=[records], **counts)


def test_targets_take_turns_within_each_row() -> None:
    runs = schedule(2, pick("10k,one"), [_bench("a"), _bench("b")])
    order = [f"{run.round} {run.row.name} {run.bench.target.name}" for run in runs]
    once = ["10k a", "10k b", "one a", "one b"]
    assert order == [f"{number} {run}" for number in (1, 2) for run in once]


class FakeUsage:
    """Uses `cores` until `busy_until`, then nothing."""

    def __init__(self, clock: ManualClock, cores: float, busy_until: float) -> None:
        self._clock, self._cores = clock, cores
        self._began, self._busy_until = clock.monotonic(), busy_until

    def cpu_seconds(self) -> dict[str, float]:
        return {"agent": self._cores * (min(self._clock.monotonic(), self._busy_until) - self._began)}


@pytest.mark.parametrize(("busy", "waits"), [(0.0, 0.25), (1.0, 1.25), (1000.0, PATIENCE_SECONDS)])
async def test_a_run_begins_when_the_targets_are_idle_or_patience_is_over(busy: float, waits: float) -> None:
    clock = ManualClock()
    began = clock.monotonic()
    usage: Any = FakeUsage(clock, 1.0, began + busy)
    await clock.run(until_idle([{}, {"agent": 7}], clock, lambda roots: usage))
    assert clock.monotonic() - began == pytest.approx(waits)


async def test_without_processes_there_is_nothing_to_wait_for() -> None:
    await until_idle([{}], ManualClock())


def test_lost_records_make_a_run_invalid() -> None:
    refuse_losses(_read(10), 10, idempotent=True)
    with pytest.raises(CorruptError, match="lost=1"):
        refuse_losses(_read(9), 10, idempotent=False)
    with pytest.raises(CorruptError, match="lost=1"):
        refuse_losses(_read(10, duplicates=1), 10, idempotent=False)
    with pytest.raises(CorruptError, match="missing=2"):
        refuse_losses(_read(10, missing=2), 10, idempotent=False)


@pytest.mark.parametrize("counts", [{"duplicates": 1}, {"disordered": 1}])
def test_only_idempotent_producers_promise_each_record_once_and_in_order(counts: dict[str, int]) -> None:
    read = _read(11 if "duplicates" in counts else 10, **counts)
    refuse_losses(read, 10, idempotent=False)
    with pytest.raises(CorruptError, match="read back"):
        refuse_losses(read, 10, idempotent=True)


def test_refused_records_make_a_run_invalid() -> None:
    made = ProduceAnswer(records=1, seconds=1.0, numbers=[1], failed=2, first_error="busy", p50_ms=1.0, p99_ms=1.0)
    with pytest.raises(UnavailableError, match="count=2 first=busy"):
        refuse_failures(made)


def test_a_run_without_records_gives_no_figures() -> None:
    (row,) = pick("10k")
    with pytest.raises(UnavailableError, match="--seconds"):
        _bench("a").measurement(row, Window(), 0, 1000, 1.0)
