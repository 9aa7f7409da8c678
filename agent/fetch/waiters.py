"""Waiting fetches, by the partitions that they wait for.

Place: between the feed, which reports new data, and the long poll in handler.py.
Invariant: news between `reset` and `wait` end the wait at once, so no arrival is missed. A waiter gets only byte
counts; the fetch looks up its data again itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from headrace.agent.fetch.metrics import FetchMetrics
from headrace.storage.clock import Clock


class Waiter:
    """One waiting fetch."""

    __slots__ = ("_heard", "_needed", "_woken")

    def __init__(self) -> None:
        self._heard = 0
        self._needed = 0
        self._woken: asyncio.Future[None] | None = None

    def reset(self) -> None:
        """Forget the news so far: the caller looks at the index next."""
        self._heard = 0

    def hear(self, new_bytes: int) -> None:
        """Something arrived for one of the partitions."""
        self._heard += new_bytes
        if self._heard >= self._needed and self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, needed_bytes: int, clock: Clock, seconds: float) -> None:
        """Return after `needed_bytes` arrived since `reset`, or after `seconds`."""
        if self._heard >= needed_bytes or seconds <= 0:
            return
        self._needed = needed_bytes
        self._woken = woken = asyncio.get_running_loop().create_future()
        timer = asyncio.ensure_future(clock.sleep(seconds))
        timer.add_done_callback(lambda _: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            self._woken = None
            timer.cancel()


class Waiters:
    """All waiters; the cost of `notify` depends on the number of news, not on the number of waiters."""

    def __init__(self, metrics: FetchMetrics, new_waiter: Callable[[], Waiter] = Waiter) -> None:
        self._metrics, self._new_waiter = metrics, new_waiter
        self._by_key: dict[int, dict[Waiter, None]] = {}
        """In order of arrival, which is the order of waking: the order of a set would differ from run to run."""

    @contextmanager
    def watch(self, keys: Iterable[int]) -> Iterator[Waiter]:
        """A waiter on all `keys` for as long as the block runs."""
        keys = set(keys)
        waiter = self._new_waiter()
        for key in keys:
            self._by_key.setdefault(key, {})[waiter] = None
        self._metrics.waiting.inc()
        try:
            yield waiter
        finally:
            self._metrics.waiting.dec()
            for key in keys:
                waiting = self._by_key[key]
                del waiting[waiter]
                if not waiting:
                    del self._by_key[key]

    def waited_for(self) -> Collection[int]:
        """The partitions that something waits for."""
        return self._by_key.keys()

    def notify(self, heard: Mapping[int, int]) -> None:
        """Notify the waiters of these keys: key -> new bytes."""
        for key, new_bytes in heard.items():
            for waiter in self._by_key.get(key, ()):
                waiter.hear(new_bytes)

    def notify_all(self, new_bytes: int) -> None:
        """Notify all waiters."""
        self.notify(dict.fromkeys(self._by_key, new_bytes))
