"""Limits a background user of the store (compaction, export, a backfill) to a byte rate and a request rate.

Place: outermost, around the store of that user; the producers' store is not throttled.
Invariant: in any interval of t seconds at most rate x (t + 1) bytes or requests are started, plus one
request's bytes: a request for more bytes than a second's worth starts and is paid for afterwards.
A rate can change at any time and then also applies to the remaining debt and to callers that already wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from headrace.storage.clock import Clock
from headrace.storage.objects.store import ByteRange, ObjectInfo, ObjectStore, StoreDecorator

LOOK_SECONDS = 10.0
"""How often a waiting caller checks for a new rate."""
LEAST_SECONDS = 1e-6
"""A shorter sleep might not advance the clock."""


class TokenBucket:
    """`rate` tokens per second, at most one second's worth in store. A caller that takes more delays the next one."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._earned = rate
        """In total; never more than a second's worth above the tokens taken."""
        self._taken = 0.0
        self._filled_at = clock.monotonic()

    def change(self, rate: float) -> None:
        """Set the rate from now on."""
        self._fill()
        self._rate = rate

    async def take(self, count: float) -> None:
        """Return after earlier debts are paid; `count` may exceed the available tokens and then becomes a debt."""
        self._fill()
        before, self._taken = self._taken, self._taken + count
        while (debt := before - self._earned) > 0:
            await self._clock.sleep(min(max(debt / self._rate, LEAST_SECONDS), LOOK_SECONDS))
            self._fill()

    def _fill(self) -> None:
        now = self._clock.monotonic()
        self._earned = min(self._taken + self._rate, self._earned + (now - self._filled_at) * self._rate)
        self._filled_at = now


class ThrottledStore(StoreDecorator):
    """Store with at most `bytes_per_s` read and written, and `requests_per_s` started; whole-object reads are
    paid for afterwards.
    """

    def __init__(self, inner: ObjectStore, *, bytes_per_s: float, requests_per_s: float, clock: Clock) -> None:
        super().__init__(inner)
        self._bytes = TokenBucket(bytes_per_s, clock)
        self._requests = TokenBucket(requests_per_s, clock)

    def limit_bytes(self, bytes_per_s: float) -> None:
        """Set another byte rate from now on."""
        self._bytes.change(bytes_per_s)

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        await self._requests.take(1)
        await self._bytes.take(memoryview(body).nbytes)
        return await self._inner.put(key, body, if_absent=if_absent)

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        await self._requests.take(1)
        await self._bytes.take(byte_range.length if byte_range else 0)
        body = await self._inner.get(key, byte_range)
        if byte_range is None:
            await self._bytes.take(len(body))
        return body

    def get_at_once(self, key: str, byte_range: ByteRange) -> memoryview | None:
        """Nothing: a caller may have to wait until it may read."""
        return None

    async def head(self, key: str) -> ObjectInfo:
        await self._requests.take(1)
        return await self._inner.head(key)

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._requests.take(1)
        async for info in self._inner.list_objects(prefix, start_after=start_after):
            yield info

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        await self._requests.take(1)
        return await self._inner.delete_many(keys)
