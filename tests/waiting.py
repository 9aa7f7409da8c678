"""Waiting for what other processes do: a wait has a limit of minutes, which only a failure reaches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

SECONDS_MAX = 300.0
PAUSE_SECONDS = 0.02


def until(holds: Callable[[], object], what: object = "it does not come true") -> None:
    """Return once it holds."""
    end = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(PAUSE_SECONDS)


async def until_so(holds: Callable[[], Awaitable[object]], what: object = "it does not come true") -> None:
    """Return once it holds; other tasks run meanwhile."""
    end = time.monotonic() + SECONDS_MAX
    while not await holds():
        assert time.monotonic() < end, what
        await asyncio.sleep(PAUSE_SECONDS)
