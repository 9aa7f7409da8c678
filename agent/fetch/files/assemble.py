"""The batches of one partition for one reader, with their real offsets, not copied.

Place: last step of the read path before the reply is encoded.
Invariant: an extent's batches are added up to the first that is damaged; base offset and leader epoch are in 16 new
bytes in front of the stored rest.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.agent.fetch.files.walk import BatchStart, ExtentBatch, walk
from headrace.metastore.api.read import Extent
from headrace.storage.errors import CorruptError
from headrace.storage.records.header import LENGTH_PREFIX_BYTES, PATCHED_BYTES, patched_header
from headrace.storage.segment.file_range import RangeBytes

NO_END = 1 << 62
"""An offset behind all others."""


class Batches:
    """Grows extent by extent. `buffers` hold `size_bytes` of complete batches, with `records` offsets."""

    __slots__ = ("buffers", "next", "records", "size_bytes")

    def __init__(self) -> None:
        self.buffers: list[bytes | memoryview] = []
        self.size_bytes = 0
        self.records = 0
        self.next: BatchStart | None = None
        """Where the reader continues; None without batches."""

    def add(
        self,
        extent: Extent,
        body: RangeBytes,
        start: BatchStart,
        *,
        max_bytes: int,
        at_least_one: bool,
        end_offset: int = NO_END,
    ) -> BatchStart:
        """Add the batches from `start` on, where `body` begins, while the result stays within `max_bytes`.

        Batches from `end_offset` on are left out. With `at_least_one` the result's first batch may exceed `max_bytes`.
        Returns where it stopped: also before a damaged batch, which the next read then begins with.
        CorruptError as walk.py if no batch comes before, and then nothing was added.
        """
        buffers: list[bytes | memoryview] = []
        size = self.size_bytes
        records = self.records
        last = None
        for batch in _whole(extent, walk(extent, body, start)):
            data = batch.data
            if batch.offset >= end_offset:
                break
            if size + len(data) > max_bytes and not (at_least_one and size == 0):
                break
            buffers.append(patched_header(len(data) - LENGTH_PREFIX_BYTES, batch.offset, extent.leader_epoch))
            buffers.append(data[PATCHED_BYTES:])
            size += len(data)
            records += batch.next_offset - batch.offset
            last = batch
        self.buffers += buffers
        self.size_bytes = size
        self.records = records
        if last is None:
            return start
        self.next = last.next
        return last.next


def _whole(extent: Extent, batches: Iterator[ExtentBatch]) -> Iterator[ExtentBatch]:
    """The batches before a damaged one. CorruptError if there are none, or if the sound ones do not fit the extent."""
    last = None
    try:
        for batch in batches:
            last = batch
            yield batch
    except CorruptError:
        if last is None or last.next.position >= extent.position + extent.length:
            raise
