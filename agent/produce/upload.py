"""Store closed files as objects in the bucket.

Place: between buffer and commit. Retries, hedging and time-outs are the store's decorators' work:
they send the same bytes under the same key again.
Invariant: an id is used for one layout only, and a file counts as stored only when the store
confirmed its whole length. A file that was not stored for certain is never committed, so its
batches failed for certain, even if an object of its name lies in the bucket: the sweeper deletes it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from headrace.agent.produce.callbacks import Callbacks
from headrace.agent.produce.flush_queue import FlushedFile
from headrace.agent.produce.layout import lay_out
from headrace.agent.produce.metrics import ProduceMetrics
from headrace.agent.produce.stages import ClosedFile
from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.store import ObjectStore

UPLOADS_SPAN_S = 1.0
"""How long after an upload the next one is expected."""


class Uploader:
    """Run at most `parallelism` uploads side by side; files that wait for a place are not laid out yet."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        rng: random.Random,
        metrics: ProduceMetrics,
        callbacks: Callbacks,
        *,
        parallelism: int,
        merge_max_bytes: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._places = asyncio.Semaphore(parallelism)
        self._merge_max_bytes = merge_max_bytes
        self._callbacks = callbacks
        self.in_flight_bytes = 0
        """Of files that are laid out and not stored yet."""
        self._ended_at = -UPLOADS_SPAN_S

    @property
    def is_active(self) -> bool:
        """Whether a file is being uploaded, or was within UPLOADS_SPAN_S."""
        return self.in_flight_bytes > 0 or self._clock.monotonic() - self._ended_at < UPLOADS_SPAN_S

    async def upload(self, file: FlushedFile, is_unwanted: Callable[[FlushedFile], bool]) -> None:
        """Store the file, unless it is unwanted by the time it has a place. Raises what the store raises.

        CorruptError when the store kept another length than was sent.
        """
        async with self._places:
            if is_unwanted(file):
                return
            assert isinstance(file.stage, ClosedFile), "a file is uploaded once"
            file.trace.put_started_at = self._clock.monotonic()
            file_id = new_file_id(self._callbacks.database_now_ms(), self._rng)
            body, placed = lay_out(file.stage.runs, self._merge_max_bytes)
            laid_out = file.stage = file.stage.lay_out(file_id, len(body), placed)
            self.in_flight_bytes += len(body)
            try:
                stored = await self._store.put(object_key(file_id), body)
            finally:
                self.in_flight_bytes -= len(body)
                self._ended_at = self._clock.monotonic()
            if stored.size != len(body):
                raise CorruptError(f"stored length differs: key={stored.key} sent={len(body)} stored={stored.size}")
        file.trace.stored_at = self._clock.monotonic()
        self._metrics.put_seconds.observe(file.trace.stored_at - file.trace.put_started_at)
        self._callbacks.on_flushed(file_id, body)
        file.stage = laid_out.stored()
