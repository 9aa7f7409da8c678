"""Sends a slow PUT of a flush file a second time, to reduce the tail latency of an object store.

Place: inside retrying (each attempt is hedged), outside measuring (both requests are counted). The decision is pure:
its times are parameters, in seconds on Clock.monotonic().
A PUT is hedged if it takes longer than the p95 of the last PUTs of its size class. There is no hedge while S3
throttles and while all places for uploads are taken: more requests would make both worse. Files above 4 MiB are not
hedged: their time is mostly transfer, and a second transfer takes bandwidth from the first.
Invariant of the decision: of any first n PUTs, at most `percent` of n are hedged; of any n in a row, at most BURST
more than that.
A PUT that was hedged counts with its whole duration, which is longer than the p95 at which it was hedged. So hedging
does not lower the p95, although the duration of the slower request stays unknown.
Invariant: both requests carry the same bytes, so it does not matter which one the store accepted. Both are finished
when the call returns: the slower one is cancelled and awaited. A cancelled PUT may still take effect in the store,
long after: also after its file was deleted. The id of a flush file is never used for other bytes, and an object
without a row is an orphan, which the sweeper deletes (decisions/0026). So only these files are put twice: a late
copy of an object that is overwritten (janitor.properties, the position of a life) would replace a newer one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from typing import Any

from prometheus_client import Counter

from headrace.storage.clock import Clock
from headrace.storage.counter_labels import from_zero
from headrace.storage.errors import OutcomeUnknownError, ThrottledError
from headrace.storage.file_id import SEGMENTS, file_id_of
from headrace.storage.objects.store import ObjectInfo, ObjectStore, StoreDecorator

KIB = 1024
SIZE_CLASSES = (64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB)
"""Largest size of each class, in bytes; a larger file is in none."""
SAMPLES_MAX = 256
SAMPLES_MIN = 20
"""Fewer PUTs of a class say nothing about their p95."""
SAMPLE_AGE_S = 300.0
"""PUTs that ended longer ago do not count."""
LEAST_DELAY_S = 0.01
"""No PUT is hedged earlier: a store that answers faster has no tail worth a request."""
THROTTLED_S = 30.0
"""How long after a request to slow down there are no hedges."""
BURST = 10
"""How many hedges may be saved."""
_WHOLE = 100
"""The price of a hedge; a PUT earns the percentage."""


class HedgePolicy:
    """Policy of one process. `percent`: PUTs of flush files that may be hedged; `parallelism`: places for uploads."""

    def __init__(self, percent: int, parallelism: int, samples_min: int = SAMPLES_MIN) -> None:
        self._percent = percent
        self._parallelism = parallelism
        self._samples_min = samples_min
        self._saved = 0
        """Hundredths of hedges."""
        self._throttled_until = 0.0
        self._running = 0
        self._samples: tuple[deque[tuple[float, float]], ...] = tuple(deque(maxlen=SAMPLES_MAX) for _ in SIZE_CLASSES)
        """(when it ended, how long it took) by size class."""

    def begin(self, size: int, now: float) -> float | None:
        """A PUT of `size` bytes begins. Return after how many seconds to ask `may_hedge`; None: never."""
        self._running += 1
        number = bisect_left(SIZE_CLASSES, size)
        if number == len(SIZE_CLASSES):
            return None
        self._saved = min(self._saved + self._percent, max(BURST * _WHOLE, self._percent))
        delay = self._p95(number, now)
        return None if delay is None else max(delay, LEAST_DELAY_S)

    def may_hedge(self, now: float) -> bool:
        """Return whether a PUT that is still in progress gets a second request; True uses up a hedge."""
        if now < self._throttled_until or self._running >= self._parallelism or self._saved < _WHOLE:
            return False
        self._saved -= _WHOLE
        return True

    def throttled(self, now: float) -> None:
        """S3 asked to slow down."""
        self._throttled_until = now + THROTTLED_S

    def end(self, size: int, seconds: float | None, now: float) -> None:
        """A PUT that began ended: `seconds` is how long it took, None if it failed."""
        self._running -= 1
        number = bisect_left(SIZE_CLASSES, size)
        if seconds is not None and number < len(SIZE_CLASSES):
            self._samples[number].append((now, seconds))

    def _p95(self, number: int, now: float) -> float | None:
        samples = self._samples[number]
        while samples and samples[0][0] < now - SAMPLE_AGE_S:
            samples.popleft()
        if len(samples) < self._samples_min:
            return None
        return sorted(seconds for _, seconds in samples)[(len(samples) * 19 + 19) // 20 - 1]


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
