"""Sends a slow PUT of a flush file a second time, to reduce the tail latency of an object store.

Place: inside retrying (each attempt is hedged), outside measuring (both requests are counted). hedge_policy.py decides.
Invariant: both requests carry the same bytes, so it does not matter which one the store accepted. Both are finished
when the call returns: the slower one is cancelled and awaited. A cancelled PUT may still take effect in the store, long
after: also after its file was deleted. The id of a flush file is never used for other bytes, and an object without a
row is an orphan, which the sweeper deletes (decisions/0026). So only these files are put twice: a late copy of an
object that is overwritten (janitor.properties, the position of a life) would replace a newer one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import Counter

from headrace.storage.clock import Clock
from headrace.storage.counter_labels import from_zero
from headrace.storage.errors import OutcomeUnknownError, ThrottledError
from headrace.storage.file_id import SEGMENTS, file_id_of
from headrace.storage.objects.decorator import StoreDecorator
from headrace.storage.objects.hedge_policy import HedgePolicy
from headrace.storage.objects.store import ObjectInfo, ObjectStore

FLUSHED = 7
"""The version of a flush file's id: merged files and those of bulk writes have another."""

HEDGES = Counter(
    "headrace_store_hedges_total",
    "Second requests for slow PUTs of flush files: answered first (won), later (lost), or both failed",
    ["result"],
)
from_zero(HEDGES, ("won", "lost", "failed"))


class HedgedStore(StoreDecorator):
    """Hedges `put` of flush files. A put with `if_absent` is not hedged: its duplicate would fail."""

    def __init__(self, inner: ObjectStore, policy: HedgePolicy, clock: Clock) -> None:
        super().__init__(inner)
        self._policy = policy
        self._clock = clock

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        if if_absent or not is_flush_file(key):
            return await self._inner.put(key, body, if_absent=if_absent)
        size, started, seconds = memoryview(body).nbytes, self._clock.monotonic(), None
        delay = self._policy.begin(size, started)
        try:
            info = await (self._put(key, body) if delay is None else self._race(key, body, delay))
            seconds = self._clock.monotonic() - started
            return info
        finally:
            self._policy.end(size, seconds, self._clock.monotonic())

    async def _put(self, key: str, body: bytes | memoryview) -> ObjectInfo:
        try:
            return await self._inner.put(key, body)
        except ThrottledError:
            self._policy.throttled(self._clock.monotonic())
            raise

    async def _race(self, key: str, body: bytes | memoryview, delay_s: float) -> ObjectInfo:
        """The first success; a failure before the second request started is raised at once."""
        first = asyncio.create_task(self._put(key, body))
        timer = asyncio.create_task(self._clock.sleep(delay_s))
        started: list[asyncio.Task[Any]] = [first, timer]
        try:
            await asyncio.wait({first, timer}, return_when=asyncio.FIRST_COMPLETED)
            if first.done() or not self._policy.may_hedge(self._clock.monotonic()):
                return await first
            second = asyncio.create_task(self._put(key, body))
            started.append(second)
            return await _first_success(first, second)
        finally:
            for task in started:
                task.cancel()
            await asyncio.gather(*started, return_exceptions=True)


def is_flush_file(key: str) -> bool:
    """Return whether an agent flushed the file with this key."""
    if not key.startswith(SEGMENTS):
        return False
    try:
        return file_id_of(key).version == FLUSHED
    except ValueError:
        return False


async def _first_success(first: asyncio.Task[ObjectInfo], second: asyncio.Task[ObjectInfo]) -> ObjectInfo:
    """The first one's if both succeed in the same turn of the loop. If both fail, the less certain error: a lost
    response takes precedence over a refusal.
    """
    waiting = {first, second}
    while waiting:
        _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in (first, second):  # not in the order of a set, which differs from run to run
            if task.done() and task.exception() is None:
                HEDGES.labels("lost" if task is first else "won").inc()
                return task.result()
    HEDGES.labels("failed").inc()
    if isinstance(second.exception(), OutcomeUnknownError):
        return second.result()
    return first.result()
