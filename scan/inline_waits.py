"""The bucket for scans: an inline file is waited for, and never read.

Place: around the store of a scan's driver, which looks into a few batches for timestamps (offsets.py). plan.py waits by
itself.
Invariant: no scan asks the metastore for bytes of records: its role need not have that right.
"""

from __future__ import annotations

from headrace.metastore.api.inline import InlineApi
from headrace.metastore.inline_store import inline_id_of
from headrace.storage.clock import Clock
from headrace.storage.errors import NotFoundError
from headrace.storage.objects.store import ByteRange, ObjectStore, StoreDecorator

MOVE_SECONDS = 180.0
"""How long a scan waits for inline files to be moved: several times as long as workers take that keep up."""
LOOK_SECONDS = 1.0


class MovingError(NotFoundError):
    """The file is inline: locate its records again a little later."""


class InlineWaits(StoreDecorator):
    """A read of an inline file asks for its move, waits LOOK_SECONDS and raises MovingError."""

    def __init__(self, inner: ObjectStore, api: InlineApi, clock: Clock) -> None:
        super().__init__(inner)
        self._api, self._clock = api, clock

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        if inline_id_of(key) is None:
            return await self._inner.get(key, byte_range)
        await self._api.ask_inline_move()
        await self._clock.sleep(LOOK_SECONDS)
        raise MovingError(f"records are in the metastore, and are about to be moved into the bucket: key={key}")
