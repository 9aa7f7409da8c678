"""Load before the first row, until a target is as fast as it gets: JVMs compile what they run often, caches fill.

Place: called by run.py for each target.
Invariant: it ends, and says whether throughput was steady then: figures of a target that still becomes faster are those
of its start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from headrace.storage.clock import Clock

STEADY_PART = 0.1
"""Two windows in a row that differ by less of the faster one are steady."""
PATIENCE_SECONDS = 60.0


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
    while not once and not is_steady(rates) and clock.monotonic() - began < PATIENCE_SECONDS:
        rates.append(await window())
    return WarmUp(mb_per_s=rates, seconds=clock.monotonic() - began, steady=None if once else is_steady(rates))
