"""Adds a fixed time to each PUT, so that a directory answers as slowly as a remote bucket.

Place: outermost, only under `headrace bench --put-delay-ms` (cli/bench/slow_agent.py); no setting enables it.
Invariant: PUTs are delayed independently of each other and otherwise unchanged; nothing else is delayed.
"""

from __future__ import annotations

from headrace.storage.clock import Clock
from headrace.storage.objects.decorator import StoreDecorator
from headrace.storage.objects.store import ObjectInfo, ObjectStore


class DelayedStore(StoreDecorator):
    """Each `put` takes `put_seconds` longer."""

    def __init__(self, inner: ObjectStore, *, put_seconds: float, clock: Clock) -> None:
        super().__init__(inner)
        self._put_seconds = put_seconds
        self._clock = clock

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        await self._clock.sleep(self._put_seconds)
        return await self._inner.put(key, body, if_absent=if_absent)
