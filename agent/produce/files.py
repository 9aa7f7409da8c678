"""The files from flush to settlement: their stages, their times, the requests that wait for them, their order.

    OpenFile -> ClosedFile -> LaidOutFile -> StoredFile -> CommittingFile -> settled
     buffer     waits for      being          may be      ^      |
                its upload     uploaded       committed   |      v
                    +-- inline ------------>              DoubtfulFile

Place: the buffer (flusher.py) holds the OpenFile; its closed files enter the queue, where a FlushedFile holds the
other stages, one at a time. Each stage is a type that the next one consumes. Upload and commit move files from stage
to stage, acknowledge.py settles them: a settled file has no stage, every batch has its answer and the file leaves
the queue. FileTrace has the times, begun by the buffer, read by metrics and load reports. Pure but for the callback.
Invariant: a batch is in exactly one file, and a request in one only, because its batches are never split over two.
Batches can be removed (`drop`) from a file only in the stages in which no commit of it may have happened; what a
commit call was sent with (CommittingFile, DoubtfulFile) never changes, because the answer is matched with it batch
by batch. Where its bytes are (an inline file's in the metastore, stored by that call, all others' in the bucket) is
fixed with its id. Files that share a stream (same producer and partition, or same connection and partition without a
producer) are committed in the order in which they were flushed: a file waits until its predecessors are settled, or
follows them in the same call. All others overtake a slow upload. Times are Clock.monotonic() in seconds; nan means that
the step did not happen.
"""

from __future__ import annotations

import asyncio
import enum
import math
import uuid
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from itertools import groupby

from headrace.agent.produce.requests import Arrival, PendingRequest, PlacedBatch, Stream
from headrace.metastore.api.commit import FileCommit


class FlushReason(enum.StrEnum):
    """Why a buffer was closed."""

    LINGER = "linger"
    IDLE = "idle"
    """No byte of a Produce request arrived for linger.idle.ms."""
    CLIENTS_WAIT = "clients_wait"
    """Every client that could add to it waited for an answer."""
    SIZE = "size"
    READY = "ready"
    """It may be inline, and no other inline file is being committed."""
    ORDER = "order"
    """It may be inline, and a batch of one of its producers goes into the other file."""
    DRAIN = "drain"


EARLY_REASONS = (FlushReason.IDLE, FlushReason.CLIENTS_WAIT)
"""Reasons to close a file before its linger ends that need the budget of early flushes."""


@dataclass(slots=True)
class FileTrace:
    """The steps of one file, from its first batch to its last answer."""

    opened_at: float
    closed_at: float = math.nan
    put_started_at: float = math.nan
    stored_at: float = math.nan
    commit_started_at: float = math.nan
    committed_at: float = math.nan
    """The answer of its last commit call arrived."""
    settled_at: float = math.nan
    reason: FlushReason = FlushReason.LINGER
    batch_count: int = 0
    size_bytes: int = 0
    """Size of the batches in bytes, without the footer."""
    commit_calls: int = 0
    is_committed: bool = False
    appended_at: list[float] = field(default_factory=list)
    """One per request of the file."""


class WaitingRequests:
    """Waiting requests in order of arrival."""

    __slots__ = ("_first_deadline", "requests")

    def __init__(self) -> None:
        self.requests: list[PendingRequest] = []
        self._first_deadline = math.inf

    def add(self, request: PendingRequest) -> None:
        """One more request."""
        self.requests.append(request)
        self._first_deadline = min(self._first_deadline, request.deadline)

    @property
    def all_answered(self) -> bool:
        """Whether every request has an answer, if only because its deadline passed."""
        return all(request.is_answered for request in self.requests)

    def expire(self, now: float) -> int:
        """Answer the requests that are past their deadline; how many those were."""
        if now < self._first_deadline:
            return 0
        waiting = [request for request in self.requests if not request.is_answered]
        late = [request for request in waiting if request.deadline <= now]
        for request in late:
            request.answer()
        self._first_deadline = min((r.deadline for r in waiting if r.deadline > now), default=math.inf)
        return len(late)


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
        """Its bytes have a layout (upload.py) and a file id; the frames of the batches are released."""
        self.runs = {}
        return LaidOutFile(file_id, size_bytes, placed)

    def lay_out_inline(self, file_id: uuid.UUID, body: bytes, placed: list[PlacedBatch]) -> StoredFile:
        """The same of an inline file: its commit stores it."""
        self.runs = {}
        return StoredFile(file_id, len(body), placed, body)


@dataclass(slots=True)
class _Placed:
    """A file with a layout, of which no commit may have happened."""

    file_id: uuid.UUID
    size_bytes: int
    entries: list[PlacedBatch]
    """The placed batches in file order."""
    body: bytes | None = field(default=None, repr=False)
    """The bytes of an inline file; None if they go into the bucket."""

    def drop(self, streams: Set[Stream]) -> list[PlacedBatch]:
        """Remove and return the batches of these streams, in order. Their bytes stay in the file, dead.

        A merged batch is removed as a whole, and with it what follows in the streams that it held.
        """
        hit = set(streams)
        kept: list[PlacedBatch] = []
        dropped: list[PlacedBatch] = []
        for _, group in groupby(self.entries, key=lambda entry: entry.batch):
            merged = list(group)
            held = {entry.stream for entry in merged}
            if hit.isdisjoint(held):
                kept += merged
            else:
                hit |= held
                dropped += merged
        self.entries = kept
        return dropped


class LaidOutFile(_Placed):
    """Being uploaded."""

    def stored(self) -> StoredFile:
        """The bucket confirmed the whole file."""
        return StoredFile(self.file_id, self.size_bytes, self.entries)


class StoredFile(_Placed):
    """The bucket holds the whole file, or its commit stores it. It may be committed as soon as the order rule
    allows."""

    def send(self) -> CommittingFile:
        """A commit call is about to take it."""
        batches = [entry.batch for entry in self.entries if not entry.records_before]
        commit = FileCommit(self.file_id, self.size_bytes, batches, self.body)
        return CommittingFile(commit, tuple(self.entries), in_doubt=False)


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
        return StoredFile(self.commit.file_id, self.commit.size, list(self.entries), self.commit.body)

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


SHARES_CALL_S = 60.0
"""Much less than the age at which a sweeper condemns files, or the metastore refuses them."""


class FlushedFile:
    """One file from its flush until it is settled: what stays the same, and the stage it has reached.

    Compared by identity. `may_be_inline`: all its topics have low.latency.enable. `first_image` and `last_image`: the
    metadata offsets under which its batches were accepted. `predecessors`: unsettled files that hold earlier batches of
    one of its streams.
    """

    __slots__ = (
        "first_image",
        "flush_number",
        "last_image",
        "may_be_inline",
        "predecessors",
        "stage",
        "streams",
        "trace",
        "waiting",
    )

    def __init__(
        self,
        stage: ClosedFile,
        streams: Set[Stream],
        waiting: WaitingRequests,
        trace: FileTrace,
        images: tuple[int, int],
        *,
        may_be_inline: bool = False,
    ) -> None:
        self.stage: Stage = stage
        self.may_be_inline = may_be_inline
        self.streams = streams
        self.waiting = waiting
        self.trace = trace
        self.first_image, self.last_image = images
        self.predecessors: set[FlushedFile] = set()
        self.flush_number = 0

    @property
    def inline_bytes(self) -> int:
        """Bytes that its commit sends; 0 for a file in the bucket, or without an id."""
        stage = self.stage
        if isinstance(stage, ClosedFile):
            return 0
        body = stage.commit.body if isinstance(stage, CommittingFile | DoubtfulFile) else stage.body
        return 0 if body is None else len(body)

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
        self.files: dict[FlushedFile, None] = {}
        """Those that are not settled, oldest first. For others to read: iterate over a copy where files may be settled
        meanwhile."""
        self._last: dict[Stream, FlushedFile] = {}
        """The newest unsettled file of each stream."""
        self._flushes = 0
        self.is_idle = asyncio.Event()
        self.is_idle.set()

    def append(self, file: FlushedFile) -> None:
        """A buffer was closed."""
        self.is_idle.clear()
        self.files[file] = None
        self._flushes += 1
        file.flush_number = self._flushes
        for stream in file.streams:
            before = self._last.get(stream)
            if before is not None:
                file.predecessors.add(before)
            self._last[stream] = file

    def settle(self, file: FlushedFile) -> None:
        """Every batch of the file has its answer. Files that waited for it now wait for its predecessors."""
        del self.files[file]
        for stream in file.streams:
            if self._last.get(stream) is file:
                self._forget_last(stream, file)
        for later in self.files:
            if file in later.predecessors:
                later.predecessors.remove(file)
                later.predecessors |= file.predecessors
        file.predecessors.clear()
        if not self.files:
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
        files = list(self.files)
        return files[files.index(file) + 1 :]

    @property
    def inline_bytes(self) -> int:
        """Bytes that the commits of inline files will send. Any thread may ask, while files come and go."""
        return sum(file.inline_bytes for file in self.files.copy())

    @property
    def commits_inline(self) -> bool:
        """Whether an inline file waits for its own commit, and for nothing else."""
        return any(file.may_be_inline and not file.predecessors for file in self.files)

    def next_group(self, files_max: int, batches_max: int, inline_max: int, now: float) -> list[FlushedFile]:
        """Files that may be part of one commit call, in commit order. At least one if any may be committed.

        `inline_max`: the bytes of inline files in a call, which it may exceed by one file's.
        """
        group: dict[FlushedFile, None] = {}
        batches = inline_bytes = 0
        for file in self.files:
            if not isinstance(file.stage, StoredFile | DoubtfulFile):
                continue
            if not all(before in group and _may_share_call(before, file, now) for before in file.predecessors):
                continue
            batches += len(file.stage.entries)
            if group and (batches > batches_max or len(group) >= files_max or inline_bytes >= inline_max):
                break
            inline_bytes += file.inline_bytes
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
