"""Keeps the background work of a process going: a loop that fails is started again, a step that fails is left out.

Place: one per process, made by cli/process/open_process.py. A loop that runs until the process ends is kept here
(`keep`), and each part of a round is tried here (`attempt`), so that a part that always fails holds up no other.
Invariant: an error of background work ends neither the process nor other work. It is logged, counted, shown in /readyz
and tried again: at once after the first failure, then after pauses that double up to PAUSE_SECONDS_MAX, or up to
OUTAGE_PAUSE_SECONDS_MAX if the metastore or the bucket did not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError, HeadraceError, OutcomeUnknownError, RetryableError

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
"""After the second failure in a row; the first one is repeated in the next round."""
PAUSE_SECONDS_MAX = 60.0
OUTAGE_PAUSE_SECONDS_MAX = 5.0
"""Such errors end for all work together, and then nothing should wait for long."""

CANCEL_AGAIN_SECONDS = 1.0
"""A task that was cancelled should have ended by then."""


@dataclass(slots=True)
class _Work:
    failures: int = 0
    """Number of failures in a row."""
    due_at: float = 0.0
    error: str = ""


class Supervisor:
    """`registry` None: without metrics."""

    def __init__(self, clock: Clock, registry: CollectorRegistry | None = None) -> None:
        self._clock = clock
        self._works: dict[str, _Work] = {}
        self._failures = Counter(
            "headrace_background_failures_total",
            "Failures of background work; it is tried again after a pause",
            ["work"],
            registry=registry,
        )
        self._failing = Gauge(
            "headrace_background_failing",
            "Failures in a row of background work that failed when it was tried last; 0 if it did not",
            ["work"],
            registry=registry,
        )

    def problems(self) -> dict[str, str]:
        """Return the problems of work that failed when it was tried last: how often in a row, and why. Any thread
        may ask.
        """
        works = list(self._works.items())
        return {name: f"{work.failures} failures: {work.error}" for name, work in works if work.failures}

    def keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run the loop until the task is cancelled or the loop returns; start it again whenever it fails."""
        return asyncio.create_task(self._keep(name, loop), name=name)

    async def attempt(self, name: str, step: Callable[[], Awaitable[object]]) -> bool:
        """Take the step if it is due; False if it failed or is left out. FencedError is the caller's: another
        process does the whole round now."""
        work = self._works.setdefault(name, _Work())
        if self._clock.monotonic() < work.due_at:
            return False
        try:
            await step()
        except FencedError:
            raise
        except Exception as error:
            self.failed(name, error)
            return False
        self.succeeded(name)
        return True

    def failed(self, name: str, error: Exception) -> None:
        """Note a failure; the next attempt is due after a pause."""
        work = self._works.setdefault(name, _Work())
        work.failures += 1
        work.error = f"{type(error).__name__}: {error}"
        is_outage = isinstance(error, (RetryableError, OutcomeUnknownError))
        longest = OUTAGE_PAUSE_SECONDS_MAX if is_outage else PAUSE_SECONDS_MAX
        pause = min(PAUSE_SECONDS * 2.0 ** min(work.failures - 2, 16), longest) if work.failures > 1 else 0.0
        work.due_at = self._clock.monotonic() + pause
        self._failures.labels(name).inc()
        self._failing.labels(name).set(work.failures)
        if isinstance(error, HeadraceError):
            logger.warning("background work failed: work=%s failures=%d error=%s", name, work.failures, error)
        else:  # a bug; its traceback is the same each time
            is_shown = work.failures & (work.failures - 1) == 0
            level = logging.ERROR if is_shown else logging.WARNING
            logger.log(
                level,
                "background work failed: work=%s failures=%d error=%s",
                name,
                work.failures,
                work.error,
                exc_info=error if is_shown else None,
            )

    def succeeded(self, name: str) -> None:
        """Note that it works."""
        work = self._works.get(name)
        if work is not None and work.failures:
            logger.info("background work goes on: work=%s failures=%d", name, work.failures)
            work.failures, work.due_at = 0, 0.0
            self._failing.labels(name).set(0)

    def forget(self, name: str) -> None:
        """Another process does this work from now on."""
        if self._works.pop(name, None) is not None:
            self._failing.labels(name).set(0)

    async def _keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        while True:
            started_at = self._clock.monotonic()
            try:
                await loop()
                self.succeeded(name)
                return
            except Exception as error:
                if self._clock.monotonic() - started_at >= PAUSE_SECONDS_MAX:
                    self.succeeded(name)  # it worked meanwhile
                self.failed(name, error)
            await self._clock.sleep(max(self._works[name].due_at - self._clock.monotonic(), PAUSE_SECONDS))


async def end_tasks() -> None:
    """Cancel every other task of this loop until all have ended: the last that a loop runs.

    asyncio.run cancels each task once, and then waits for all of them. A task that is in asyncio.wait_for can lose a
    cancellation that comes together with what it waits for (CPython before 3.12): a worker of psycopg's pool did, and
    the process never ended.
    """
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS)
