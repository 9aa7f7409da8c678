"""Base class of the decorators: a store that forwards all operations to an inner store.

Place: between a plain store and its users; `open.py` defines the order of the decorators.
Invariant: `get_many` uses the decorator's `get`, so each range is retried, hedged, measured and throttled separately:
one slow range does not cause the others to be read again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from headrace.storage.objects.ranges import read_each
from headrace.storage.objects.store import ByteRange, ObjectInfo, ObjectStore


class StoreDecorator:
    """Forwards every operation to `inner`. Contracts and errors are the protocol's."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        return await self._inner.put(key, body, if_absent=if_absent)

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        return await self._inner.get(key, byte_range)

    def get_at_once(self, key: str, byte_range: ByteRange) -> memoryview | None:
        return self._inner.get_at_once(key, byte_range)

    async def get_many(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        return await read_each(self.get, key, ranges)

    async def head(self, key: str) -> ObjectInfo:
        return await self._inner.head(key)

    def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._inner.list_objects(prefix, start_after=start_after)

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        return await self._inner.delete_many(keys)

    async def close(self) -> None:
        await self._inner.close()
