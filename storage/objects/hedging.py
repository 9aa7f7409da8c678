"""Sends a second, identical request if the first is slow, to reduce the tail latency of an object store.

Place: inside retrying (each attempt is hedged), outside measuring (both requests are counted).
Invariant: both requests carry the same bytes, so it does not matter which one the store accepted. Both are finished
when the call returns: the slower one is cancelled and awaited. A cancelled PUT may still take effect in the store, long
after. So only segment files are put twice, which are never overwritten: a late copy of another object
(janitor.properties, the position of a life) would replace a newer one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headrace.storage.clock import Clock
from headrace.storage.errors import OutcomeUnknownError
from headrace.storage.file_id import SEGMENTS
from headrace.storage.objects.decorator import StoreDecorator
from headrace.storage.objects.store import ByteRange, ObjectInfo, ObjectStore

T = TypeVar("T")


class HedgedStore(StoreDecorator):
    """Hedges `get`, `head` and, for segment files, `put` after `after_ms`. A put with `if_absent` is not hedged: its
    duplicate would fail.
    """

    def __init__(self, inner: ObjectStore, after_ms: int, clock: Clock) -> None:
        super().__init__(inner)
        self._after_s = after_ms / 1000
        self._clock = clock

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        if if_absent or not key.startswith(SEGMENTS):
            return await self._inner.put(key, body, if_absent=if_absent)
        return await self._race(lambda: self._inner.put(key, body))

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        return await self._race(lambda: self._inner.get(key, byte_range))

    async def head(self, key: str) -> ObjectInfo:
        return await self._race(lambda: self._inner.head(key))

    async def _race(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The first success; a failure before the second request started is raised at once."""
        first = asyncio.create_task(call())
        timer = asyncio.create_task(self._clock.sleep(self._after_s))
        started: list[asyncio.Task[Any]] = [first, timer]
        try:
            await asyncio.wait({first, timer}, return_when=asyncio.FIRST_COMPLETED)
            if first.done():
                return first.result()
            second = asyncio.create_task(call())
            started.append(second)
            return await _first_success(first, second)
        finally:
            for task in started:
                task.cancel()
            await asyncio.gather(*started, return_exceptions=True)


async def _first_success(first: asyncio.Task[T], second: asyncio.Task[T]) -> T:
    """The first one's if both succeed in the same turn of the loop. If both fail, the less certain error: a lost
    response takes precedence over a refusal.
    """
    waiting = {first, second}
    while waiting:
        _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in (first, second):  # not in the order of a set, which differs from run to run
            if task.done() and task.exception() is None:
                return task.result()
    if isinstance(second.exception(), OutcomeUnknownError):
        return second.result()
    return first.result()
