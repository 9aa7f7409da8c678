"""From a closed buffer to an object in the bucket.

Place: between buffer and commit. Retries, hedging and timeouts are the store's decorators' job:
they send the same bytes under the same key again.
Invariant: an id is used for one layout only, and a file counts as stored only when the store
confirmed its whole length. A file that was not stored for certain is never committed, so its
batches failed for certain, even when an object of its name may lie in the bucket: the sweeper's.
If the process dies here nothing was acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable

from headrace.agent.produce.merge import Laid, merge
from headrace.agent.produce.metrics import ProduceMetrics
from headrace.agent.produce.staged_file import Arrival, FileState, Staged, StagedFile
from headrace.metastore.values import StagedBatch
from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.store import ObjectStore
from headrace.storage.segment.writer import SegmentWriter

NO_PRODUCER = (-1, -1, -1)
"""Without an id clients send anything as epoch and sequence."""


class Uploader:
    """At most `parallelism` uploads side by side; files that wait for a place are not laid out yet."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        rng: random.Random,
        metrics: ProduceMetrics,
        *,
        parallelism: int,
        merge_max_bytes: int,
        database_now_ms: Callable[[], int],
        on_flushed: Callable[[uuid.UUID, bytes], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self._metrics = metrics
        self._places = asyncio.Semaphore(parallelism)
        self._merge_max_bytes = merge_max_bytes
        self._database_now_ms = database_now_ms
        self._on_flushed = on_flushed

    async def upload(self, file: StagedFile, is_unwanted: Callable[[StagedFile], bool]) -> None:
        """Store the file, unless it is unwanted by the time it has a place. Raises what the store raises.

        CorruptError when the store kept another length than was sent.
        """
        async with self._places:
            if is_unwanted(file):
                return
            file.trace.put_started_at = self._clock.monotonic()
            file.file_id = new_file_id(self._database_now_ms(), self._rng)
            body = lay_out(file, self._merge_max_bytes)
            stored = await self._store.put(object_key(file.file_id), body)
            if stored.size != len(body):
                raise CorruptError(f"stored length differs: key={stored.key} sent={len(body)} stored={stored.size}")
        file.size_bytes = len(body)
        file.trace.stored_at = self._clock.monotonic()
        self._metrics.put_seconds.observe(file.trace.stored_at - file.trace.put_started_at)
        self._on_flushed(file.file_id, body)
        file.state = FileState.STORED


def lay_out(file: StagedFile, merge_max_bytes: int = 0) -> bytes:
    """The file's bytes; afterwards its batches are known by their positions, and the frames are let go.

    Small neighbours are merged up to `merge_max_bytes` (merge.py); 0 merges nothing.
    """
    writer = SegmentWriter()
    staged: list[Staged] = []
    for run in sorted(file.arrivals.values(), key=_place_of):
        for laid in merge(run, merge_max_bytes):
            staged += _stage(writer, laid, run[0].leader_epoch)
    body = writer.finish()
    file.arrivals, file.staged = {}, staged
    return body


def _place_of(run: list[Arrival]) -> tuple[int, int]:
    return run[0].topic_id.int, run[0].partition_index


def _stage(writer: SegmentWriter, laid: Laid, leader_epoch: int) -> list[Staged]:
    """A partition's batches of one file share the leader epoch of the first: all are taken, or none is."""
    data, header, members = laid
    topic_id, index, key = members[0][1][:3]
    position = writer.add(topic_id, index, key, data, header)
    producer = (
        (header.producer_id, header.producer_epoch, header.base_sequence) if header.producer_id >= 0 else NO_PRODUCER
    )
    batch = StagedBatch(
        key,
        position,
        len(data),
        header.record_count,
        header.highest_timestamp,
        *producer,
        leader_epoch,
    )
    return [
        Staged(batch, before, arrival.owner, header.is_log_append_time, arrival.request, arrival.reply)
        for before, arrival in members
    ]
