"""Computes a partition's footer entry from its batches, in the same way for writing and for auditing.

Place: under writer.py, which asks it for every byte position, and reader.py's full verification.
Invariant: the entry depends only on the batches and the index interval.
"""

from __future__ import annotations

import uuid

import crc32c

from headrace.storage.records.header import CRC_START, DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT, BatchHeader
from headrace.storage.segment.format import IndexEntry, PartitionEntry

_BASE_IS_NO_TIME = LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT


class PartitionSummary:
    """A partition's bytes in one file, as far as they are laid out."""

    __slots__ = (
        "_batch_count",
        "_index",
        "_index_due",
        "_interval",
        "_max_timestamp",
        "_min_timestamp",
        "_partition_index",
        "_partition_key",
        "_prefix_crc",
        "_record_count",
        "_start",
        "_topic_id",
        "end",
    )

    def __init__(
        self, topic_id: uuid.UUID, partition_index: int, partition_key: int, position: int, index_interval_bytes: int
    ) -> None:
        self._topic_id = topic_id
        self._partition_index = partition_index
        self._partition_key = partition_key
        self._start = self.end = position
        self._interval = index_interval_bytes
        self._index_due = position + index_interval_bytes
        self._index: list[IndexEntry] = []
        self._batch_count = self._record_count = self._prefix_crc = 0
        self._min_timestamp = 2**63 - 1
        self._max_timestamp = -(2**63)

    def add(self, batch: memoryview, header: BatchHeader) -> int:
        """Add the next batch; returns the file position of its first byte."""
        position = self.end
        if position >= self._index_due:
            self._index.append(IndexEntry(self._record_count, self._max_timestamp, position))
            self._index_due = position + self._interval
        # A producer may leave the maximum unset; with LogAppendTime, or a delete horizon, the base is no record's time.
        highest = lowest = header.max_timestamp
        if not header.attributes & _BASE_IS_NO_TIME:
            lowest = header.base_timestamp
        # No min() and max(), and no properties of the header: this runs for every batch.
        if lowest < self._min_timestamp:
            self._min_timestamp = lowest
        if highest < lowest:
            highest = lowest
        if highest > self._max_timestamp:
            self._max_timestamp = highest
        self._prefix_crc = crc32c.crc32c(batch[:CRC_START], self._prefix_crc)
        self._batch_count += 1
        self._record_count += header.last_offset_delta + 1
        self.end = position + len(batch)
        return position

    def entry(self) -> PartitionEntry:
        """The footer entry of the batches added so far."""
        return PartitionEntry(
            self._topic_id,
            self._partition_index,
            self._partition_key,
            self._start,
            self.end - self._start,
            self._batch_count,
            self._record_count,
            self._min_timestamp,
            self._max_timestamp,
            self._prefix_crc,
            tuple(self._index),
        )
