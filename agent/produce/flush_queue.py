"""The files between flush and settlement: their order, their stages, and which may be committed now.

Place: the buffer's closed files enter, upload and commit move them from stage to stage, acknowledge
settles them. Pure but for the callback.
Invariant: files that share a stream (same producer and partition, or same connection and partition
without a producer) are committed in the order in which they were flushed: a file waits until its
predecessors are settled, or follows them in the same call. All others overtake a slow upload.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Set

from headrace.agent.produce.batches import Arrival, PlacedBatch, Stream
from headrace.agent.produce.stages import ClosedFile, CommittingFile, DoubtfulFile, Droppable, Stage, StoredFile
from headrace.agent.produce.trace import FileTrace
from headrace.agent.produce.waiting import WaitingRequests

SHARES_CALL_S = 60.0
"""Much less than the age at which a sweeper condemns files, or the metastore refuses them."""


class FlushedFile:
    """One file from its flush until it is settled: what stays the same, and the stage it has reached.

    Compared by identity. `first_image` and `last_image`: the metadata offsets under which its batches
    were accepted. `predecessors`: unsettled files that hold earlier batches of one of its streams.
    """

    __slots__ = ("first_image", "flush_number", "last_image", "predecessors", "stage", "streams", "trace", "waiting")

    def __init__(
        self,
        stage: ClosedFile,
        streams: Set[Stream],
        waiting: WaitingRequests,
        trace: FileTrace,
        images: tuple[int, int],
    ) -> None:
        self.stage: Stage = stage
        self.streams = streams
        self.waiting = waiting
        self.trace = trace
        self.first_image, self.last_image = images
        self.predecessors: set[FlushedFile] = set()
        self.flush_number = 0

    @property
    def in_doubt(self) -> bool:
        """Whether a commit of it was sent with an unknown outcome: it may have happened, or may happen yet."""
        return isinstance(self.stage, DoubtfulFile) or (isinstance(self.stage, CommittingFile) and self.stage.in_doubt)

    def drop(self, streams: Set[Stream]) -> list[Arrival] | list[PlacedBatch]:
        """Remove the batches of these streams, in order; none once a commit of the file may have happened."""
        if isinstance(self.stage, Droppable) and (hit := self.streams & streams):
            return self.stage.drop(hit)
        return []


class FlushQueue:
    """Queue of files in the order of their flushes. `on_settled` learns of each file that leaves; `is_idle` is set
    while it is empty.
    """

    def __init__(self, on_settled: Callable[[FlushedFile], None] = lambda file: None) -> None:
        self._on_settled = on_settled
        self._files: dict[FlushedFile, None] = {}
        self._last: dict[Stream, FlushedFile] = {}
        """The newest unsettled file of each stream."""
        self._flushes = 0
        self.is_idle = asyncio.Event()
        self.is_idle.set()

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[FlushedFile]:
        """Oldest first; files may be settled meanwhile."""
        return iter(list(self._files))

    def append(self, file: FlushedFile) -> None:
        """A buffer was closed."""
        self.is_idle.clear()
        self._files[file] = None
        self._flushes += 1
        file.flush_number = self._flushes
        for stream in file.streams:
            before = self._last.get(stream)
            if before is not None:
                file.predecessors.add(before)
            self._last[stream] = file

    def settle(self, file: FlushedFile) -> None:
        """Every batch of the file has its answer. Files that waited for it now wait for its predecessors."""
        del self._files[file]
        for stream in file.streams:
            if self._last.get(stream) is file:
                self._forget_last(stream, file)
        for later in self._files:
            if file in later.predecessors:
                later.predecessors.remove(file)
                later.predecessors |= file.predecessors
        file.predecessors.clear()
        if not self._files:
            self.is_idle.set()
        self._on_settled(file)

    def _forget_last(self, stream: Stream, file: FlushedFile) -> None:
        """A file that fails may be settled before its predecessors: then the newest of those is the last."""
        before = [earlier for earlier in file.predecessors if stream in earlier.streams]
        if before:
            self._last[stream] = max(before, key=lambda earlier: earlier.flush_number)
        else:
            del self._last[stream]

    def behind(self, file: FlushedFile) -> list[FlushedFile]:
        """The files that were flushed after this one."""
        files = list(self._files)
        return files[files.index(file) + 1 :]

    def next_group(self, files_max: int, batches_max: int, now: float) -> list[FlushedFile]:
        """Files that may be part of one commit call, in commit order. At least one if any may be committed."""
        group: dict[FlushedFile, None] = {}
        batches = 0
        for file in self._files:
            if not isinstance(file.stage, StoredFile | DoubtfulFile):
                continue
            if not all(before in group and _may_share_call(before, file, now) for before in file.predecessors):
                continue
            batches += len(file.stage.entries)
            if group and (batches > batches_max or len(group) >= files_max):
                break
            group[file] = None
        return list(group)


def _may_share_call(before: FlushedFile, file: FlushedFile, now: float) -> bool:
    """Return whether `file` may follow its predecessor in one call: only if the call takes both or neither.

    A predecessor in doubt is repeated without the files that it was not sent with. An old one may be
    condemned, or refused for its age. One that was accepted under other leader epochs may be
    refused for them while `file` is taken.
    """
    return (
        before.in_doubt == file.in_doubt
        and now - before.trace.put_started_at < SHARES_CALL_S
        and before.first_image == file.last_image
    )
