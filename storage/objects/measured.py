"""Counts requests to the store, for Prometheus.

Place: the innermost decorator, next to the store: it sees every attempt and both requests of a hedge,
so its counts are the requests that the bucket owner pays for (a listing counts once, for all its pages).
Invariant: each call is counted once, with its result. Keys are never labels.
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
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    ThrottledError,
    UnavailableError,
)
from headrace.storage.objects.decorator import StoreDecorator
from headrace.storage.objects.store import ByteRange, ObjectInfo, ObjectStore

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
