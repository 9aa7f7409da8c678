"""Lays out batches as one segment file.

Place: the write path's last step before upload, and every merge of a compactor.
Invariant: batches are sorted by topic id, then partition; inside a partition they keep the order in
which they were added, byte for byte (W6). Equal input gives equal bytes, so a retried
upload and a repeated job write the same object.
"""

from __future__ import annotations

import uuid

from headrace.storage.errors import InvalidError
from headrace.storage.records.header import LENGTH_PREFIX_BYTES, BatchHeader
from headrace.storage.segment.format import (
    BODY_START,
    INDEX_INTERVAL_BYTES,
    SEGMENT_HEADER,
    PartitionSummary,
    encode_footer,
)


class SegmentWriter:
    """Collects views of batches; copies them once, in `finish`. The caller sorts."""

    def __init__(self, *, index_interval_bytes: int = INDEX_INTERVAL_BYTES) -> None:
        if not 0 < index_interval_bytes < 2**32:
            raise InvalidError(f"index interval out of range: index_interval_bytes={index_interval_bytes}")
        self._interval = index_interval_bytes
        self._buffers: list[bytes | memoryview] = [SEGMENT_HEADER]
        self._partitions: list[PartitionSummary] = []
        self._open: PartitionSummary | None = None
        self._open_partition_key = -1
        self._open_sort_key = (-1, -1)

    @property
    def body_end(self) -> int:
        """Size of the file so far in bytes, without footer."""
        return BODY_START if self._open is None else self._open.end

    def add(
        self, topic_id: uuid.UUID, topic_partition: int, partition_key: int, batch: memoryview, header: BatchHeader
    ) -> int:
        """Append one checked batch; returns its byte position in the file.

        `partition_key` identifies (topic id, partition): an unchanged key continues the current
        partition. `batch` must not change until `finish`. InvalidError if a partition comes before
        one already written, or `header` does not belong to the batch.
        """
        if header.batch_length + LENGTH_PREFIX_BYTES != len(batch):
            raise InvalidError(f"header is of another batch: header_size={header.size} bytes={len(batch)}")
        run = self._open
        if run is None or partition_key != self._open_partition_key:
            run = self._start(topic_id, topic_partition, partition_key)
        self._buffers.append(batch)
        return run.add(batch, header)

    def finish(self) -> bytes:
        """The whole file. InvalidError if it would be empty, or its footer is too large."""
        if self._open is None:
            raise InvalidError("segment file without batches")
        footer = encode_footer([run.entry() for run in self._partitions], self._interval)
        return b"".join((*self._buffers, footer))

    def _start(self, topic_id: uuid.UUID, topic_partition: int, partition_key: int) -> PartitionSummary:
        sort_key = (topic_id.int, topic_partition)
        if sort_key <= self._open_sort_key:
            raise InvalidError(f"batches not sorted: topic_id={topic_id} partition={topic_partition} comes too late")
        run = PartitionSummary(topic_id, topic_partition, partition_key, self.body_end, self._interval)
        self._open, self._open_partition_key, self._open_sort_key = run, partition_key, sort_key
        self._partitions.append(run)
        return run
