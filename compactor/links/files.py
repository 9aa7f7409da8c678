"""Collect chunks of a link's partitions, and make one segment file of them.

Place: between the chunks (chunks.py) and their storing (storing.py). Pure.
Invariant: the chunks of a partition continue each other; the file has them in the order of a segment file, with real
offsets and the source's leader epochs, so its level is 1. A run is one extent: of one leader epoch, and small enough
for readers that start within it. A segment is all of a partition's runs of one leader epoch.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.compactor.links.chunks import Chunk
from headrace.compactor.rewrite import WrittenBatch
from headrace.metastore.api.links import CopiedProducer, LinkedPartition, LinkedRun
from headrace.metastore.api.segments import NewSegment
from headrace.storage.segment.format import BODY_START
from headrace.storage.segment.writer import SegmentWriter

LEVEL = 1
FILE_BYTES = 24 * 1024 * 1024
"""Size in bytes from which on a file is stored; with the last answer it stays below MAPPED_BYTES of
cli/process/heap.py: larger ones are mapped and zeroed each time, at three times the CPU of laying them out.
"""
EXTENT_BYTES = 8 * 1024 * 1024
"""A reader that starts in the middle of an extent iterates from its first batch."""
RUNS_MAX = 2_000
"""A file with so many is stored: one call appends them."""


class LaidOut(NamedTuple):
    """A file that is not stored yet."""

    body: bytes
    body_bytes: int
    runs: list[LinkedRun]
    segments: list[NewSegment]
    producers: list[CopiedProducer]
    ends: dict[int, int]
    """The log end of each partition, by its key, after the file."""


@dataclass(slots=True)
class _Part:
    """One partition's part of the file."""

    row: LinkedPartition
    chunks: list[Chunk] = field(default_factory=list)
    lost: int = 0


class LinkFile:
    """A file that grows by chunks."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes of its batches."""
        self._parts: dict[int, _Part] = {}
        self._batches = 0

    def __bool__(self) -> bool:
        """Return whether there is something in it."""
        return bool(self._parts)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be added."""
        return self.size >= FILE_BYTES or len(self._parts) >= RUNS_MAX

    @property
    def lost(self) -> dict[int, int]:
        """Offsets that the source no longer had, by partition key."""
        return {key: part.lost for key, part in self._parts.items() if part.lost}

    def add(self, row: LinkedPartition, chunk: Chunk, lost: int = 0) -> None:
        """Add the next chunk of a partition. `lost`: how many offsets of it the source no longer had."""
        part = self._parts.setdefault(row.partition_key, _Part(row))
        assert not part.chunks or part.chunks[-1].next_offset == chunk.base_offset, row
        part.chunks.append(chunk)
        part.lost += lost
        self.size += sum(len(data) for _, data in chunk.batches)

    def lay_out(self, rng: random.Random) -> LaidOut:
        """The file. Nothing can be added any more; what it was made of is dropped."""
        parts, self._parts = self._parts, {}
        writer, runs, segments = SegmentWriter(), list[LinkedRun](), list[NewSegment]()
        producers: list[CopiedProducer] = []
        for key, part in sorted(
            parts.items(), key=lambda each: (each[1].row.topic_id.int, each[1].row.partition_index)
        ):
            for of_epoch in _by_epoch(part.chunks):
                own = [self._write(writer, part.row, some) for some in _by_size(of_epoch)]
                runs += own
                segments.append(_segment(own, rng))
            states = {state.producer_id: state for chunk in part.chunks for state in chunk.producers.changed(key)}
            producers += states.values()
        ends = {key: part.chunks[-1].next_offset for key, part in parts.items()}
        body_bytes = writer.body_end - BODY_START
        runs.sort(key=lambda run: (run.partition_key, run.base_offset))
        return LaidOut(writer.finish(), body_bytes, runs, segments, producers, ends)

    @staticmethod
    def _write(writer: SegmentWriter, row: LinkedPartition, batches: list[WrittenBatch]) -> LinkedRun:
        """Write one extent."""
        start = writer.body_end
        for header, data in batches:
            writer.add(row.topic_id, row.partition_index, row.partition_key, data, header)
        first, last = batches[0][0], batches[-1][0]
        return LinkedRun(
            row.partition_key,
            first.base_offset,
            last.base_offset + last.last_offset_delta,
            start,
            writer.body_end - start,
            first.leader_epoch,
            max(header.highest_timestamp for header, _ in batches),
        )


def _by_epoch(chunks: list[Chunk]) -> Iterator[list[WrittenBatch]]:
    """The batches of the chunks, those of one leader epoch together."""
    found: list[WrittenBatch] = []
    for chunk in chunks:
        for batch in chunk.batches:
            if found and batch[0].leader_epoch != found[-1][0].leader_epoch:
                yield found
                found = []
            found.append(batch)
    yield found


def _by_size(batches: list[WrittenBatch]) -> Iterator[list[WrittenBatch]]:
    """The batches of each extent."""
    found: list[WrittenBatch] = []
    size = 0
    for batch in batches:
        if found and size + len(batch[1]) > EXTENT_BYTES:
            yield found
            found, size = [], 0
        found.append(batch)
        size += len(batch[1])
    yield found


def _segment(runs: list[LinkedRun], rng: random.Random) -> NewSegment:
    return NewSegment(
        uuid.UUID(int=rng.getrandbits(128), version=4),
        runs[0].partition_key,
        runs[0].base_offset,
        runs[-1].last_offset,
        runs[0].leader_epoch,
        max(run.max_timestamp for run in runs),
        sum(run.length for run in runs),
    )
