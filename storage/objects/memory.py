"""Objects in this process's memory, for tests, simulation and `memory://`.

Fault model: none. It never throttles, delays, truncates or loses data; wrap it to get faults.
Place: under the decorators, instead of S3.
Invariant: a stored body is a private copy, so a caller may reuse its buffer after `put` returned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import crc32c

from headrace.storage.clock import Clock, SystemClock
from headrace.storage.errors import AlreadyExistsError, NotFoundError
from headrace.storage.objects.store import ByteRange, ObjectInfo, check_inside, check_key


@dataclass(frozen=True, slots=True)
class _Stored:
    body: bytes
    info: ObjectInfo


class MemoryStore:
    """A dictionary with the store's protocol. Objects exist as long as it does, also after `close`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._objects: dict[str, _Stored] = {}

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        if if_absent and check_key(key) in self._objects:
            raise AlreadyExistsError(f"object exists: key={key}")
        content = bytes(body)
        info = ObjectInfo(
            key=check_key(key),
            size=len(content),
            modified_ms=self._clock.wall_ms(),
            etag=f"{crc32c.crc32c(content):08x}-{len(content)}",
        )
        self._objects[key] = _Stored(content, info)
        return info

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        body = self._find(key).body
        if byte_range is None:
            return body
        check_inside(key, byte_range, len(body))
        return body[byte_range.start : byte_range.start + byte_range.length]

    def get_at_once(self, key: str, byte_range: ByteRange) -> memoryview | None:
        """Nothing, as from a remote bucket."""
        return None

    async def get_many(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        return [await self.get(key, byte_range) for byte_range in ranges]

    async def head(self, key: str) -> ObjectInfo:
        return self._find(key).info

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        for key in sorted(self._objects):
            if key.startswith(prefix) and key > start_after and key in self._objects:
                yield self._objects[key].info

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        for key in keys:
            self._objects.pop(check_key(key), None)
        return list(dict.fromkeys(keys))

    async def close(self) -> None:
        """Nothing to release."""

    def _find(self, key: str) -> _Stored:
        stored = self._objects.get(check_key(key))
        if stored is None:
            raise NotFoundError(f"no such object: key={key}")
        return stored
