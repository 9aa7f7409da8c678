"""Segment files for tests: the batches, and their layout."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

from headrace.storage.records.header import read_header
from headrace.storage.segment.writer import SegmentWriter


class Placed(NamedTuple):
    """One batch and the partition that it goes to."""

    topic_id: uuid.UUID
    partition: int
    batch: bytes

    @property
    def partition_key(self) -> int:
        return (self.topic_id.int & 0xFFFF) << 24 | self.partition


def lay_out(placed: Sequence[Placed], *, index_interval_bytes: int = 256) -> tuple[bytes, list[int]]:
    """The file, and every batch's position."""
    writer = SegmentWriter(index_interval_bytes=index_interval_bytes)
    positions = [
        writer.add(item.topic_id, item.partition, item.partition_key, memoryview(item.batch), read_header(item.batch))
        for item in placed
    ]
    return writer.finish(), positions


def sort_for_file(placed: Sequence[Placed]) -> list[Placed]:
    """Sort batches by topic id, then partition, keeping arrival order: what the writer's caller does."""
    return sorted(placed, key=lambda item: (item.topic_id.bytes, item.partition))
