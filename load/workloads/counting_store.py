"""A bucket that counts what it is asked for, around any other.

Place: what benchmarks give to agents and workers in the stead of S3, with a MergingStore around it as
storage/objects/open.py has it.
Invariant: it changes only the time: each GET takes `get_seconds` longer, as one to S3 would. `close`
leaves what is inside open, for the next one who borrows it.
"""

from __future__ import annotations

from headrace.storage.clock import Clock
from headrace.storage.objects.store import ByteRange, ObjectInfo, ObjectStore, StoreDecorator


class CountingStore(StoreDecorator):
    """Requests and bytes since `reset`."""

    def __init__(self, inner: ObjectStore, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock
        self.get_seconds = 0.0
        self.reset()

    def reset(self) -> None:
        """Count from 0."""
        self.puts = self.gets = self.put_bytes = self.get_bytes = 0

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        self.puts += 1
        self.put_bytes += len(body)
        return await self._inner.put(key, body, if_absent=if_absent)

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        self.gets += 1
        if self.get_seconds:
            await self._clock.sleep(self.get_seconds)
        body = await self._inner.get(key, byte_range)
        self.get_bytes += len(body)
        return body

    async def close(self) -> None:
        """Nothing: see above."""
