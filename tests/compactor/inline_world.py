"""A world in which some files are inline: their bytes are rows of the metastore until a merge moves them."""

from __future__ import annotations

import asyncio

from headrace.metastore.api.inline import NO_SLOT
from headrace.metastore.inline_store import InlineStore
from headrace.metastore.postgres.store import PostgresMetastore
from tests.compactor.segment_world import SegmentWorld
from tests.metastore.sessions import rows, session

SLOT_BYTES = 1 << 30
GRACE_S = 11.0
"""A slot keeps what became dead less than ten seconds ago."""


class InlineWorld(SegmentWorld):
    """A cluster with keys for its merged files. `bucket` is below the store that all use."""

    def __init__(self, metastore: PostgresMetastore, url: str, seed: int = 0) -> None:
        super().__init__(metastore, url, seed)
        self.bucket = self.store
        self.store = InlineStore(self.bucket, metastore.inline)  # type: ignore[assignment]
        self.service = self.new_service()
        self.ahead_s = 0.0

    async def slot(self) -> int:
        """Return the slot that takes files, a new one if none does."""
        state = await self.postgres.inline.inline_state()
        if state.slot == NO_SLOT:
            await self.rotate()
            state = await self.postgres.inline.inline_state()
        assert state.slot != NO_SLOT
        return state.slot

    async def rotate(self, *, slot_bytes: int = SLOT_BYTES, slot_ms: int = 0, until: int | None = None) -> int:
        """Turn the slots, as agents do; how many were emptied. `until`: once so many slots are free, or never."""
        emptied = 0
        for _ in range(400):
            emptied += await self.postgres.inline.rotate_inline_slots(slot_bytes, slot_ms)
            if until is None or (await self.postgres.inline.inline_state()).free_slots == until:
                return emptied
            await asyncio.sleep(0.01)  # a reader was looking into the slot
        raise AssertionError(f"slots are not free: {await self.postgres.inline.inline_state()}")

    async def later(self, seconds: float = GRACE_S) -> None:
        """Move the metastore's clock."""
        self.ahead_s += seconds
        async with session(self.url) as raw:
            await raw.execute(
                "CREATE OR REPLACE FUNCTION wall_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE RETURN"
                f" floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + {int(self.ahead_s * 1000)}".encode()
            )

    async def held_rows(self) -> int:
        """Return how many files have their bytes in the metastore."""
        async with session(self.url) as raw:
            ((count,),) = await rows(raw, "SELECT count(*) FROM inline_files")
        return int(count)
