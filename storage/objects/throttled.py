"""Keeps a background user of the store (compaction, export, a backfill) below a byte and a request rate.

Place: outermost, around the store that is handed to that user; producers' store has none.
Invariant: over any stretch of t seconds at most rate x (t + 1) bytes or requests are begun, plus one
request's own bytes: a request that is larger than a second's worth is let through and paid for after.
If the process dies here nothing is lost: no state worth keeping.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from storage.clock import Clock
from storage.objects.decorator import StoreDecorator
from storage.objects.store import ByteRange, ObjectInfo, ObjectStore


class TokenBucket:
    """`rate` tokens a second, one second's worth at most in store. Who takes too much makes the next one wait."""

    def __init__(self, rate: float, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._level = rate
        self._filled_at = clock.monotonic()

    async def take(self, count: float) -> None:
        """Return once earlier debts are paid; `count` may be more than there is, and becomes a debt itself."""
        self._fill()
        debt, self._level = -self._level, self._level - count
        if debt > 0:
            await self._clock.sleep(debt / self._rate)

    def _fill(self) -> None:
        now = self._clock.monotonic()
        self._level = min(self._rate, self._level + (now - self._filled_at) * self._rate)
        self._filled_at = now


class ThrottledStore(StoreDecorator):
    """At most `bytes_per_s` put and got, and `requests_per_s` begun; reading whole objects is paid for afterwards."""

    def __init__(self, inner: ObjectStore, *, bytes_per_s: float, requests_per_s: float, clock: Clock) -> None:
        super().__init__(inner)
        self._bytes = TokenBucket(bytes_per_s, clock)
        self._requests = TokenBucket(requests_per_s, clock)

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
