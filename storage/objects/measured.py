"""Counts the requests to a store by their results.

Place: MeasuredStore is the innermost decorator, next to the store: it sees every attempt and both requests of a
hedge, so its counts are the requests that the bucket owner pays for (a listing counts once, for all its pages). The
count of PUT outcomes is the outermost decorator of a process's bucket (cli/process/open_process.py), around the
retries: a PUT that failed there failed for its caller. The readiness probe asks it, and writes one small object
through it when it is due.
Invariant: each call is counted once, with its result. Keys are never labels.
Invariant of PUT outcomes: PUTs fail if the last one failed, and at least FAILURES_MIN in a row failed within
FAILING_SECONDS or longer, or the probe's own did. One success ends that. The probe writes at most once in
PROBE_SECONDS while PUTs succeed, or none is made, and at most once in FAILING_SECONDS while they fail, or one has
had no answer for that long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import Counter, Histogram

from headrace.storage.clock import Clock
from headrace.storage.errors import (
    AlreadyExistsError,
    CorruptError,
    HeadraceError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    ThrottledError,
    UnavailableError,
)
from headrace.storage.objects.store import ByteRange, ObjectInfo, ObjectStore, StoreDecorator

REQUESTS = Counter("headrace_store_requests_total", "Object store requests, by result", ["operation", "result"])
BYTES = Counter("headrace_store_bytes_total", "Object bytes written and read by successful requests", ["operation"])
SECONDS = Histogram(
    "headrace_store_request_seconds",
    "Duration of object store requests, including the wait for a connection",
    ["operation", "result"],
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10),
)

_RESULTS: dict[type[BaseException], str] = {
    ThrottledError: "throttled",
    UnavailableError: "unavailable",
    OutcomeUnknownError: "outcome_unknown",
    CorruptError: "corrupt",
    NotFoundError: "not_found",
    AlreadyExistsError: "already_exists",
    InvalidError: "invalid",
    asyncio.CancelledError: "cancelled",
}


class MeasuredStore(StoreDecorator):
    """Counts every operation with its result, bytes and duration."""

    def __init__(self, inner: ObjectStore, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        with self._observed("put"):
            info = await self._inner.put(key, body, if_absent=if_absent)
        BYTES.labels("put").inc(info.size)
        return info

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        with self._observed("get"):
            body = await self._inner.get(key, byte_range)
        BYTES.labels("get").inc(len(body))
        return body

    def get_at_once(self, key: str, byte_range: ByteRange) -> memoryview | None:
        """Counted only if there is a body: else the caller's `get` is."""
        started = self._clock.monotonic()
        body = self._inner.get_at_once(key, byte_range)
        if body is not None:
            REQUESTS.labels("get", "ok").inc()
            SECONDS.labels("get", "ok").observe(self._clock.monotonic() - started)
            BYTES.labels("get").inc(len(body))
        return body

    async def head(self, key: str) -> ObjectInfo:
        with self._observed("head"):
            return await self._inner.head(key)

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """The duration includes the caller's time between two objects."""
        with self._observed("list"):
            async for info in self._inner.list_objects(prefix, start_after=start_after):
                yield info

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        with self._observed("delete"):
            return await self._inner.delete_many(keys)

    @contextmanager
    def _observed(self, operation: str) -> Iterator[None]:
        started = self._clock.monotonic()
        result = "ok"
        try:
            yield
        except BaseException as error:
            result = _RESULTS.get(type(error), "failed")
            raise
        finally:
            REQUESTS.labels(operation, result).inc()
            SECONDS.labels(operation, result).observe(self._clock.monotonic() - started)


PROBE_KEY = "readiness-probe"
"""All processes write the same object, so that none is left behind by one that is gone."""
PROBE_SECONDS = 60.0
FAILURES_MIN = 3
FAILING_SECONDS = 5.0


class PutOutcomes(StoreDecorator):
    """For one event loop; `failure` from any thread."""

    def __init__(self, inner: ObjectStore, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock
        self._failures = 0
        self._failed_since = 0.0
        self._error = ""
        self._probe_failed = False
        self._under_way: dict[object, float] = {}
        """When each PUT without an answer was sent, the oldest first."""
        self._settled_at = clock.monotonic()
        """When a PUT succeeded, or the probe was sent, last."""

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        sent = object()
        self._under_way[sent] = self._clock.monotonic()
        try:
            info = await self._inner.put(key, body, if_absent=if_absent)
        except AlreadyExistsError:
            self._succeeded()
            raise
        except HeadraceError as error:
            if not self._failures:
                self._failed_since = self._clock.monotonic()
            self._failures += 1
            self._error = str(error) or type(error).__name__
            raise
        finally:
            del self._under_way[sent]
        self._succeeded()
        return info

    async def get_many(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        return await self._inner.get_many(key, ranges)

    def failure(self) -> str | None:
        """Return why PUTs count as failing; None while they succeed, or none is known to fail."""
        lasts = self._clock.monotonic() - self._failed_since >= FAILING_SECONDS
        if self._probe_failed or (self._failures >= FAILURES_MIN and lasts):
            return f"PUTs fail: {self._error}"
        return None

    async def probe(self) -> None:
        """Write PROBE_KEY if it is due. UnavailableError if PUTs fail."""
        now = self._clock.monotonic()
        oldest = next(iter(self._under_way.values()), now)
        due_after = FAILING_SECONDS if self._failures or now - oldest >= FAILING_SECONDS else PROBE_SECONDS
        if now - self._settled_at >= due_after:
            self._settled_at = now
            try:
                await self.put(PROBE_KEY, b"")
            except HeadraceError:
                self._probe_failed = True
        if (failure := self.failure()) is not None:
            raise UnavailableError(failure)

    def _succeeded(self) -> None:
        self._failures, self._probe_failed = 0, False
        self._settled_at = self._clock.monotonic()
