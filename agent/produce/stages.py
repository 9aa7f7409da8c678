"""The stages of a segment file on the write path, each a type that the next one consumes.

    OpenFile -> ClosedFile -> LaidOutFile -> StoredFile -> CommittingFile -> settled
     buffer     waits for      being          may be      ^      |
                its upload     uploaded       committed   |      v
                                                          DoubtfulFile

Place: the buffer holds the OpenFile; the others are held, one at a time, by a FlushedFile of the flush
queue (flush_queue.py). A settled file has no stage: every batch has its answer and the file leaves the queue.
Invariant: a batch is in exactly one file. Batches can be removed (`drop`) from a file only in the stages
in which no commit of it may have happened; what a commit call was sent with (CommittingFile, DoubtfulFile)
never changes, because the answer is matched with it batch by batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import groupby

from headrace.agent.produce.batches import Arrival, PlacedBatch, Stream
from headrace.metastore.api.commit import FileCommit

Runs = dict[int, list[Arrival]]
"""Batches by partition key, in order of arrival."""


@dataclass(slots=True)
class ClosedFile:
    """Closed by the buffer; waits for an upload place. No bytes are laid out yet."""

    runs: Runs

    @property
    def entries(self) -> list[Arrival]:
        return [arrival for run in self.runs.values() for arrival in run]

    def drop(self, streams: Set[Stream]) -> list[Arrival]:
        """Remove and return the batches of these streams, in order."""
        dropped: list[Arrival] = []
        for key in {key for _, key in streams} & self.runs.keys():
            run = self.runs.pop(key)
            dropped += [arrival for arrival in run if arrival.stream in streams]
            if kept := [arrival for arrival in run if arrival.stream not in streams]:
                self.runs[key] = kept
        return dropped

    def lay_out(self, file_id: uuid.UUID, size_bytes: int, placed: list[PlacedBatch]) -> LaidOutFile:
        """Its bytes have a layout (layout.py) and a file id; the frames of the batches are released."""
        self.runs = {}
        return LaidOutFile(file_id, size_bytes, placed)


@dataclass(slots=True)
class _Placed:
    """A file with a layout, of which no commit may have happened."""

    file_id: uuid.UUID
    size_bytes: int
    placed: list[PlacedBatch]
    """The placed batches in file order."""

    @property
    def entries(self) -> Sequence[PlacedBatch]:
        return self.placed

    def drop(self, streams: Set[Stream]) -> list[PlacedBatch]:
        """Remove and return the batches of these streams, in order. Their bytes stay in the file, dead.

        A merged batch is removed as a whole, and with it what follows in the streams that it held.
        """
        hit = set(streams)
        kept: list[PlacedBatch] = []
        dropped: list[PlacedBatch] = []
        for _, group in groupby(self.placed, key=lambda entry: entry.batch):
            merged = list(group)
            held = {entry.stream for entry in merged}
            if hit.isdisjoint(held):
                kept += merged
            else:
                hit |= held
                dropped += merged
        self.placed = kept
        return dropped


class LaidOutFile(_Placed):
    """Being uploaded."""

    def stored(self) -> StoredFile:
        """The bucket confirmed the whole file."""
        return StoredFile(self.file_id, self.size_bytes, self.placed)


class StoredFile(_Placed):
    """The bucket holds the whole file. It may be committed as soon as the order rule allows."""

    def send(self) -> CommittingFile:
        """A commit call is about to take it."""
        batches = [entry.batch for entry in self.placed if not entry.records_before]
        return CommittingFile(FileCommit(self.file_id, self.size_bytes, batches), tuple(self.placed), in_doubt=False)


@dataclass(frozen=True, slots=True)
class CommittingFile:
    """Part of a commit call, in flight or waiting to be repeated."""

    commit: FileCommit
    entries: tuple[PlacedBatch, ...]
    in_doubt: bool
    """Whether an earlier call with this file may have happened, or may happen yet."""

    def put_back(self) -> StoredFile | DoubtfulFile:
        """The call certainly did nothing."""
        if self.in_doubt:
            return DoubtfulFile(self.commit, self.entries)
        return StoredFile(self.commit.file_id, self.commit.size, list(self.entries))

    def doubted(self) -> CommittingFile:
        """The call's answer was lost."""
        return CommittingFile(self.commit, self.entries, in_doubt=True)


@dataclass(frozen=True, slots=True)
class DoubtfulFile:
    """A commit of it may have happened: it may be committed again, but only exactly as it was."""

    commit: FileCommit
    entries: tuple[PlacedBatch, ...]

    def send(self) -> CommittingFile:
        """A commit call is about to take it again."""
        return CommittingFile(self.commit, self.entries, in_doubt=True)


Droppable = ClosedFile | LaidOutFile | StoredFile
"""No commit of it may have happened: batches can still be removed."""
Stage = Droppable | CommittingFile | DoubtfulFile
