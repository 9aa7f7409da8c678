"""Records in the background what this agent found damaged, or forgot.

Place: DamageNotes is called by files/damage.py and writes to the metastore, so that doctor names the damaged extents
and their sources are kept. ForgottenExtents is called by the tail index and writes to the bucket which extents it
forgot because the metastore went back, or began a new life. No reader waits for either.
Invariant: what is found damaged is sent until the metastore has it: an unavailable metastore delays it. The same
damage is sent at most every REPEAT_S, however many readers meet it, and at most PENDING_MAX extents wait: what does
not fit is found again by the next reader. Of forgotten extents, only those that were committed and fed are written.
They, and small files of theirs that the agent has in memory, are put into the bucket with insistence
(storage/insistent.py); what an agent that is killed has not written makes the list of lost records shorter, not wrong.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from headrace.metastore.api.compaction import CompactionApi, DamagedExtent, DamageKind, FoundDamage
from headrace.metastore.api.read import DataExtent, Extent
from headrace.metastore.life.forgotten import write_forgotten
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError
from headrace.storage.file_id import is_inline, object_key
from headrace.storage.insistent import InsistentPuts
from headrace.storage.objects.store import ObjectStore
from headrace.storage.segment.damage import Piece

logger = logging.getLogger(__name__)


PARALLEL_PUTS = 8


class ForgottenExtents:
    """One per agent; `note` may be called at any time on the loop."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        rng: random.Random,
        body_of: Callable[[uuid.UUID], memoryview | None] = lambda file_id: None,
    ) -> None:
        """`body_of`: a flush file, if this agent still has it in memory."""
        self._store, self._body_of = store, body_of
        self._rng = rng
        self._puts = InsistentPuts(clock)

    def note(self, extents: Sequence[Extent]) -> None:
        """Write them, if there are any; and their inline files into the bucket, as no other process may have the
        bytes."""
        if extents:
            inline = {extent.source for extent in extents if is_inline(extent.source)}
            bodies = {file_id: body for file_id in inline if (body := self._body_of(file_id)) is not None}
            self._puts.start(self._write(extents))
            self._puts.start(self._save_all(bodies))

    async def close(self) -> None:
        """Wait for what is being written; what the bucket refused gets one more try."""
        await self._puts.close()

    async def _write(self, extents: Sequence[Extent]) -> None:
        name = uuid.UUID(int=self._rng.getrandbits(128), version=4)  # one name: a repetition replaces it
        put = partial(write_forgotten, self._store, name, extents)
        if await self._puts.insist(put, f"list of forgotten extents: count={len(extents)}"):
            logger.warning("the metastore went back or began a new life: recorded extents=%d", len(extents))

    async def _save_all(self, bodies: Mapping[uuid.UUID, memoryview]) -> None:
        turns = asyncio.Semaphore(PARALLEL_PUTS)

        async def save(file_id: uuid.UUID, body: memoryview) -> bool:
            async def put() -> None:
                async with turns:
                    await self._store.put(object_key(file_id), body)

            return await self._puts.insist(put, f"small file: file={file_id}")

        saved = await asyncio.gather(*(save(*each) for each in bodies.items()))
        if bodies:
            logger.warning("small files saved from the life that is over: files=%d of=%d", sum(saved), len(bodies))


REPEAT_S = 600.0
RETRY_S = 5.0
PENDING_MAX = 1_024

_Place = tuple[uuid.UUID, int]


class DamageNotes:
    """One per agent; `note` may be called at any time on the loop."""

    def __init__(self, api: CompactionApi, clock: Clock) -> None:
        self._api, self._clock = api, clock
        self._pending: OrderedDict[_Place, FoundDamage] = OrderedDict()
        self._told: OrderedDict[_Place, tuple[FoundDamage, float]] = OrderedDict()
        self._telling: asyncio.Task[None] | None = None

    def note(self, extent: DataExtent, pieces: Sequence[Piece]) -> None:
        """Tell the metastore that these pieces of the extent are damaged, unless that was done lately."""
        found = FoundDamage(
            DamagedExtent(
                extent.file_id,
                extent.position,
                extent.length,
                extent.partition_key,
                extent.base_offset,
                extent.last_offset,
                kind=DamageKind.ALTERED,
                why=pieces[0].why,
            ),
            pieces[0].base_offset,
            pieces[-1].last_offset,
        )
        place = (extent.file_id, extent.position)
        told, at = self._told.get(place, (None, 0.0))
        if (told == found and self._clock.monotonic() < at + REPEAT_S) or len(self._pending) >= PENDING_MAX:
            return
        self._pending[place] = found
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def close(self) -> None:
        """Stop telling."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)

    async def _tell(self) -> None:
        while self._pending:
            some = dict(self._pending)
            try:
                await self._api.note_damage(list(some.values()))
            except HeadraceError as error:
                logger.warning("damage not recorded yet: extents=%d error=%s", len(some), error)
                await self._clock.sleep(RETRY_S)
                continue
            now = self._clock.monotonic()
            for place, found in some.items():
                if self._pending.get(place) is found:
                    del self._pending[place]
                self._told[place] = (found, now)
                self._told.move_to_end(place)
            while len(self._told) > PENDING_MAX:
                self._told.popitem(last=False)
