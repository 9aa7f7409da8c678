"""Running many schedules in one test: the counters, and the report of a failure."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable

from tests.simulation.result import Result
from tests.simulation.world import simulate

ATTEMPTS = "attempts="
"""Opens the counter of the batches that were sent so many times."""
SHOWN_MAX = 6
"""Problems of one schedule that a failure shows."""


class Failed(AssertionError):
    """A schedule broke a promise; the message replays it."""


def simulate_all(seeds: Iterable[int]) -> Counter[str]:
    """Run the schedules and add up what they did; Failed at the first one with a problem."""
    total: Counter[str] = Counter()
    was_enabled = gc.isenabled()
    gc.disable()  # a schedule's objects are freed together: collecting once per schedule is cheaper
    try:
        for seed in seeds:
            result = simulate(seed)
            if result.problems:
                raise Failed(explain(result))
            total.update(count(result))
            gc.collect(1)
    finally:
        if was_enabled:
            gc.enable()
    return total


def count(result: Result) -> Counter[str]:
    """One schedule's part of the summary; faults by their names."""
    counted = Counter({fault.value: times for fault, times in result.faults.items()})
    counted["schedules"] = 1
    counted["batches sent"] = len(result.attempts_per_batch)
    counted["polls"] = result.polls
    counted["epoch bumps"] = result.epoch_bumps
    counted["neighbour answers"] = result.neighbour_answers
    counted["losses listed"] = result.losses_listed
    for attempts in result.attempts_per_batch:
        counted[f"{ATTEMPTS}{attempts}"] += 1
    return counted


def explain(result: Result) -> str:
    """Return what went wrong, and the line that does it again."""
    shown = [f"  {problem}" for problem in result.problems[:SHOWN_MAX]]
    if len(result.problems) > SHOWN_MAX:
        shown.append(f"  and {len(result.problems) - SHOWN_MAX} more")
    return "\n".join((f"schedule broke a promise: seed={result.seed}", *shown, "replay:", "  " + replay(result.seed)))


def replay(seed: int) -> str:
    """The command that runs this one schedule and shows its history."""
    return f"HEADRACE_TEST_SEED={seed} .venv/bin/python -m pytest tests/simulation -k replay -s"
