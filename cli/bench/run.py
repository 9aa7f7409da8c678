"""The whole run: targets started, warmed up, measured in turns.

Place: between command.py and loads.py. Load before the first row makes a target as fast as it gets: JVMs compile
what they run often, caches fill.
Invariant of the warm-up: it ends, and says whether throughput was steady then: figures of a target that still
becomes faster are those of its start.
Invariant: within a round each row is run on every target, one directly after the other, so that a ratio compares
minutes of the same machine. A run that fails is reported and left out; the others continue. Before each run the
targets do what earlier runs left to them (deletions, merges, collections of garbage): one that is never idle is
measured after PATIENCE_SECONDS as it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.cli.bench.loads import run_row
from headrace.cli.bench.measurement import Measurement
from headrace.cli.bench.rows import IDEMPOTENT, MEGABYTE_BATCHES, Produce, Row
from headrace.cli.bench.target_bench import Bounds, TargetBench
from headrace.cli.bench.targets import MeasuredTarget, TargetSpec, open_target
from headrace.cli.bench.window import ProcessUsage
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

STEADY_PART = 0.1
"""Two windows in a row that differ by less of the faster one are steady."""
STEADY_PATIENCE_SECONDS = 60.0


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """The throughput of each window. `steady`: the last two differed little; None if there was one window only."""

    mb_per_s: list[float]
    seconds: float
    steady: bool | None


def is_steady(rates: Sequence[float]) -> bool:
    """Say whether the last two windows differ by less than STEADY_PART. Pure."""
    if len(rates) < 2:
        return False
    before, last = rates[-2:]
    return abs(last - before) < STEADY_PART * max(last, before)


async def warm_up(window: Callable[[], Awaitable[float]], clock: Clock, *, once: bool = False) -> WarmUp:
    """Repeat `window`, which returns its MB/s, until it is steady or PATIENCE_SECONDS have passed."""
    began, rates = clock.monotonic(), [await window()]
    while not once and not is_steady(rates) and clock.monotonic() - began < STEADY_PATIENCE_SECONDS:
        rates.append(await window())
    return WarmUp(mb_per_s=rates, seconds=clock.monotonic() - began, steady=None if once else is_steady(rates))


WARM_UP = Row("warm-up", "", Produce(1_000, IDEMPOTENT | MEGABYTE_BATCHES))
WARM_UP_SECONDS = 1.0
IDLE_CORES = 0.15
"""What all targets together may use: an idle one uses a few hundredths of a core."""
LOOK_SECONDS = 0.25
PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to measure."""

    specs: Sequence[TargetSpec]
    rows: Sequence[Row]
    rounds: int
    bounds: Bounds
    folder: Path
    """Empty; data of the targets that are started."""
    jars: Path | None
    steady: bool = True
    """Warm up until throughput is steady; else with one short load."""


@dataclass
class Outcome:
    """Measurements in the order in which they were made; versions and warm-ups of the targets by name."""

    versions: dict[str, str] = field(default_factory=dict)
    warm_ups: dict[str, WarmUp] = field(default_factory=dict)
    runs: list[Measurement] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Run(NamedTuple):
    """One row on one target."""

    round: int
    row: Row
    bench: TargetBench


Watcher = Callable[[str, int, int, Measurement | str | None], None]
"""Is called with (what runs, runs done, runs in all, what the last run gave)."""


async def run_plan(plan: BenchPlan, clock: Clock, watch: Watcher) -> Outcome:
    """Start every target, measure, stop them. HeadraceError if a target does not start."""
    outcome = Outcome()
    total = plan.rounds * len(plan.rows) * len(plan.specs)
    async with AsyncExitStack() as stack:
        benches = []
        for spec in plan.specs:
            watch(f"start {spec.name}", 0, total, None)
            folder = plan.folder / spec.name
            folder.mkdir()
            folder.chmod(0o711)  # an embedded Postgres that root starts runs as another user
            target = await stack.enter_async_context(open_target(spec, folder, plan.jars))
            outcome.versions[spec.name] = target.version
            benches.append(TargetBench(target, plan.bounds, clock, plan.jars))
            watch(f"warm up {spec.name}", 0, total, None)
            outcome.warm_ups[spec.name] = await _warm_up(plan, target, clock)
        for number, run in enumerate(schedule(plan.rounds, plan.rows, benches)):
            label = f"round {run.round}/{plan.rounds} {run.row.name} {run.bench.target.name}"
            watch(label, number, total, None)
            await until_idle([each.target.roots for each in benches], clock)
            watch(label, number + 1, total, await _try(run, outcome))
    return outcome


def schedule(rounds: int, rows: Sequence[Row], benches: Sequence[TargetBench]) -> Iterator[Run]:
    """The runs in order: of each round, of each row, the targets in turns. Pure."""
    for round_number in range(1, rounds + 1):
        for row in rows:
            for bench in benches:
                yield Run(round_number, row, bench)


async def _warm_up(plan: BenchPlan, target: MeasuredTarget, clock: Clock) -> WarmUp:
    brief = replace(plan.bounds, seconds=min(WARM_UP_SECONDS, plan.bounds.seconds))
    bench = TargetBench(target, brief, clock, plan.jars)

    async def window() -> float:
        return (await run_row(bench, WARM_UP, 0)).mb_per_s

    return await warm_up(window, clock, once=not plan.steady)


async def _try(run: Run, outcome: Outcome) -> Measurement | str:
    try:
        measurement = await run_row(run.bench, run.row, run.round)
    except HeadraceError as error:
        outcome.failures.append(f"round {run.round}, {run.row.name} on {run.bench.target.name}: {error}")
        return str(error)
    outcome.runs.append(measurement)
    return measurement


async def until_idle(
    roots: Sequence[Mapping[str, Iterable[int]]],
    clock: Clock,
    usage_of: Callable[[Mapping[str, Iterable[int]]], ProcessUsage] = ProcessUsage,
) -> None:
    """Return once the process trees of all targets use less than IDLE_CORES, or patience is over."""
    usages = [usage_of(each) for each in roots if each]
    if not usages:
        return
    began = now = clock.monotonic()
    spent = _spent(usages)
    while now - began < PATIENCE_SECONDS:
        await clock.sleep(LOOK_SECONDS)
        before, spent_before = now, spent
        now, spent = clock.monotonic(), _spent(usages)
        if spent - spent_before < IDLE_CORES * (now - before):
            return


def _spent(usages: Sequence[ProcessUsage]) -> float:
    return sum(sum(usage.cpu_seconds().values()) for usage in usages)
