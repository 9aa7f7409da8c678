"""Buckets that pause or fail where a test wants it."""

from __future__ import annotations

import asyncio

from headrace.storage.errors import UnavailableError
from headrace.storage.objects.store import ObjectInfo, ObjectStore, StoreDecorator


class PausingStore(StoreDecorator):
    """Stops after each put until `resume` is set; `stored` is set once it stopped."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.stored, self.resume = asyncio.Event(), asyncio.Event()

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        done = await super().put(key, body, if_absent=if_absent)
        self.stored.set()
        await self.resume.wait()
        return done


class FailingStore(StoreDecorator):
    """Its first put fails, after the object is stored or before."""

    def __init__(self, inner: ObjectStore, *, is_stored: bool) -> None:
        super().__init__(inner)
        self._is_stored, self._has_failed = is_stored, False

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        if self._has_failed:
            return await super().put(key, body, if_absent=if_absent)
        self._has_failed = True
        if self._is_stored:
            await super().put(key, body, if_absent=if_absent)
        raise UnavailableError("timeout")
