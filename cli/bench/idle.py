"""Waits until the targets have done what earlier runs left to them: deletions, merges, collections of garbage.

Place: called by run.py before each run.
Invariant: it ends: a target that is never idle is measured after PATIENCE_SECONDS as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from headrace.cli.bench.process_usage import ProcessUsage
from headrace.storage.clock import Clock

IDLE_CORES = 0.15
"""What all targets together may use: an idle one uses a few hundredths of a core."""
LOOK_SECONDS = 0.25
PATIENCE_SECONDS = 5.0


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
