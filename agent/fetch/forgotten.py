"""Writes to the bucket which extents this agent forgot because the metastore went back, or began a new life.

Place: called by the tail index; written in the background, as nothing waits for it.
Invariant: only extents that were committed and fed. What is not written, because the agent or the bucket fails, makes
the list of lost records shorter, not wrong.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Sequence

from headrace.metastore.api.read import Extent
from headrace.metastore.life.forgotten import write_forgotten
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)


class ForgottenExtents:
    """One per agent; `note` may be called at any time on the loop."""

    def __init__(self, store: ObjectStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self._writing: set[asyncio.Task[None]] = set()

    def note(self, extents: Sequence[Extent]) -> None:
        """Write them, if there are any."""
        if extents:
            task = asyncio.get_running_loop().create_task(self._write(extents))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def close(self) -> None:
        """Wait for what is being written."""
        await asyncio.gather(*self._writing)

    async def _write(self, extents: Sequence[Extent]) -> None:
        name = uuid.UUID(int=self._rng.getrandbits(128), version=4)
        try:
            await write_forgotten(self._store, name, extents)
        except HeadraceError as error:
            logger.warning("forgotten extents not recorded: count=%d error=%s", len(extents), error)
        else:
            logger.warning("the metastore went back or began a new life: recorded extents=%d", len(extents))
