"""A clock that only a test moves.

Fault model: none. Sleepers wake in the order of their deadlines, and everything that becomes
runnable runs before the next one wakes, so a test with real timeouts takes no real time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

_TURNS = 50
"""Turns of the loop that let a chain of callbacks and tasks come to rest."""
_QUIET_TURNS = 2
"""After so many turns with nothing else to run, it has come to rest: each of them asked the sockets, too."""


class CountedThreads(ThreadPoolExecutor):
    """The threads of a loop's `to_thread`, which knows how many calls are at work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self.at_work = 0

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> CountedThreads:
        """Return those of the loop; it gets them with the first call, in place of threads that it has already."""
        if not isinstance(found := getattr(loop, "_default_executor", None), cls):
            loop.set_default_executor(found := cls(loop))
        return found

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        self.at_work += 1
        future = super().submit(fn, *args, **kwargs)
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._ended))
        return future

    def _ended(self) -> None:
        """Run by the loop just before what waits for the call."""
        self.at_work -= 1


class ManualClock:
    """Implements storage.clock.Clock. `monotonic` starts at 1000 s, the wall clock at `start_ms`."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._now = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self._now

    def wall_ms(self) -> int:
        return self._start_ms + round((self._now - 1000.0) * 1000)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken

    def jump(self, seconds: float) -> None:
        """Move time without letting any task run: for code that only asks what time it is."""
        self._now += seconds

    async def advance(self, seconds: float) -> None:
        """Move time by `seconds`, waking each sleeper at its own deadline."""
        end = self._now + seconds
        await self.settle()
        while self._wake_next(end):
            await self.settle()
        self._now = max(self._now, end)

    async def run(self, work: Awaitable[T], limit_seconds: float = 3600.0) -> T:
        """The result of `work`, with time moving on by itself whenever all tasks sleep.

        Real I/O (a server, a thread) is waited for in real time; while a thread works, no time passes. TimeoutError
        past the limit of virtual time.
        """
        threads = CountedThreads.of(asyncio.get_running_loop())
        task = asyncio.ensure_future(work)
        end = self._now + limit_seconds
        while not task.done():
            await self.settle()
            if threads.at_work:
                await asyncio.wait({task}, timeout=0.001)
            elif not task.done() and not self._wake_next(end):
                if self._sleepers_left():
                    task.cancel()
                    raise TimeoutError(f"not done after {limit_seconds} s of virtual time")
                await asyncio.wait({task}, timeout=0.001)
        return await task

    async def settle(self) -> None:
        """Let everything that can run, run."""
        loop = asyncio.get_running_loop()
        others: Collection[object] = getattr(loop, "_ready", (None,))
        quiet = 0
        for _ in range(_TURNS):
            await asyncio.sleep(0)
            quiet = 0 if others or _may_be_at_work(loop) else quiet + 1
            if quiet == _QUIET_TURNS:
                return

    def _wake_next(self, end: float) -> bool:
        if not self._sleepers_left() or self._sleepers[0][0] > end:
            return False
        deadline, _, woken = heapq.heappop(self._sleepers)
        self._now = max(self._now, deadline)
        woken.set_result(None)
        return True

    def _sleepers_left(self) -> bool:
        while self._sleepers and self._sleepers[0][2].done():  # cancelled
            heapq.heappop(self._sleepers)
        return bool(self._sleepers)


def _may_be_at_work(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether a thread may be about to make something runnable. Threads that are not counted always may."""
    threads = getattr(loop, "_default_executor", None)
    return threads is not None and (not isinstance(threads, CountedThreads) or threads.at_work > 0)
