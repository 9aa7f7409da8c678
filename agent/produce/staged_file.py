"""A segment file in the making, from its first batch to its last answer.

Place: filled by buffer, laid out and stored by upload, ordered by commit, answered by acknowledge.
Invariant: a batch is in exactly one file, and leaves it only with an answer. What was sent to the
metastore once (COMMITTING) never changes: the answer is counted off against it.
If the process dies the file is unknown to the metastore, and the sweeper's if it was stored.
"""

from __future__ import annotations

import enum
import math
import uuid
from collections.abc import Set
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from headrace.agent.produce.pending import PendingRequest
from headrace.metastore.values import FileCommit, StagedBatch
from headrace.protocol.produce_codec import ProducePartitionReply
from headrace.storage.records.header import BatchHeader

Stream = tuple[int, int]
"""(owner, partition key): batches of one stream are committed in the order in which they came.

The owner is a producer id, or the complement of a connection id for batches without a producer.
"""


class FlushReason(enum.StrEnum):
    """Why a buffer was closed."""

    LINGER = "linger"
    SIZE = "size"
    DRAIN = "drain"


class FileState(enum.IntEnum):
    """How far a file has come. Every file goes through them in this order, possibly skipping to SETTLED."""

    OPEN = 0
    CLOSED = 1
    """Waiting for its upload, or uploading."""
    STORED = 2
    """The bucket holds it whole."""
    COMMITTING = 3
    """Its commit was sent, and may have happened."""
    SETTLED = 4
    """Every batch has its answer."""


class Arrival(NamedTuple):
    """One batch that passed validation, and whom to answer."""

    topic_id: uuid.UUID
    partition_index: int
    partition_key: int
    leader_epoch: int
    owner: int
    data: memoryview
    header: BatchHeader
    request: PendingRequest
    reply: ProducePartitionReply

    @property
    def stream(self) -> Stream:
        """Whose order it belongs to."""
        return self.owner, self.partition_key


class Staged(NamedTuple):
    """The same batch once its place in the file is known and its bytes are no longer needed.

    Batches that were merged stand side by side and share `batch`, which is then larger than each.
    """

    batch: StagedBatch
    records_before: int
    """Records of `batch` that are others': 0 for the first, and for whatever was not merged."""
    owner: int
    is_log_append_time: bool
    request: PendingRequest
    reply: ProducePartitionReply

    @property
    def stream(self) -> Stream:
        """Whose order it belongs to."""
        return self.owner, self.batch.partition_key


@dataclass(slots=True)
class FileTrace:
    """When things happened to a file, on Clock.monotonic() in seconds (nan: never), for metrics and load reports."""

    opened_at: float
    closed_at: float = math.nan
    put_started_at: float = math.nan
    stored_at: float = math.nan
    commit_started_at: float = math.nan
    settled_at: float = math.nan
    reason: FlushReason = FlushReason.LINGER
    batch_count: int = 0
    size_bytes: int = 0
    commit_calls: int = 0
    is_committed: bool = False
    appended_at: list[float] = field(default_factory=list)
    """One per request of the file."""


class StagedFile:
    """Compared by identity.

    `first_image` and `last_image`: the metadata offsets under which its batches were accepted.
    `predecessors`: unsettled files that hold earlier batches of one of its streams.
    """

    __slots__ = (
        "arrivals",
        "commit",
        "file_id",
        "first_deadline",
        "first_image",
        "flush_number",
        "is_in_doubt",
        "last_image",
        "predecessors",
        "requests",
        "size_bytes",
        "staged",
        "state",
        "streams",
        "trace",
    )

    def __init__(self, opened_at: float, image_offset: int) -> None:
        self.trace = FileTrace(opened_at)
        self.state = FileState.OPEN
        self.file_id: uuid.UUID | None = None
        """Its name in the bucket, from its upload on."""
        self.first_image = self.last_image = image_offset
        self.arrivals: dict[int, list[Arrival]] = {}
        """By partition key, in order of arrival; empty once laid out."""
        self.staged: list[Staged] = []
        """In file order, once laid out."""
        self.commit: FileCommit | None = None
        """What was sent to the metastore, while that call may have happened."""
        self.is_in_doubt = False
        """A commit of it was sent whose outcome is unknown: it may happen at any time, or have happened."""
        self.streams: set[Stream] = set()
        self.predecessors: set[StagedFile] = set()
        self.flush_number = 0
        self.requests: list[PendingRequest] = []
        self.first_deadline = math.inf
        self.size_bytes = 0

    def add(self, request: PendingRequest, arrivals: list[Arrival], image_offset: int) -> None:
        """Take a request's batches, all of them."""
        for arrival in arrivals:
            key = arrival.partition_key
            run = self.arrivals.get(key)
            if run is None:
                self.arrivals[key] = [arrival]
            else:
                run.append(arrival)
            self.streams.add((arrival.owner, key))
            self.size_bytes += len(arrival.data)
        self.requests.append(request)
        self.first_deadline = min(self.first_deadline, request.deadline)
        self.last_image = image_offset

    def batches(self) -> list[StagedBatch]:
        """What a commit is told of the laid-out file."""
        return [entry.batch for entry in self.staged if not entry.records_before]

    @property
    def is_empty(self) -> bool:
        """Every batch of it was answered already."""
        return not self.staged and not self.arrivals

    @property
    def nobody_waits(self) -> bool:
        """Every request of it was answered, be it by its deadline."""
        return all(request.is_answered for request in self.requests)

    def remove(self, streams: Set[Stream]) -> list[Arrival | Staged]:
        """Take out the batches of these streams, in order. Bytes that were laid out already stay, dead.

        A merged batch goes whole, and what follows in the streams that it held goes with it.
        """
        hit = self.streams & streams
        if not hit:
            return []
        removed: list[Arrival | Staged] = []
        for key in {key for _, key in hit} & self.arrivals.keys():
            run = self.arrivals.pop(key)
            removed += [arrival for arrival in run if (arrival.owner, key) in hit]
            if kept := [arrival for arrival in run if (arrival.owner, key) not in hit]:
                self.arrivals[key] = kept
        removed += self._remove_staged(set(hit))  # a file is either laid out or not
        return removed

    def _remove_staged(self, hit: set[Stream]) -> list[Staged]:
        kept: list[Staged] = []
        removed: list[Staged] = []
        for _, group in groupby(self.staged, key=lambda entry: entry.batch):
            entries = list(group)
            streams = {entry.stream for entry in entries}
            if hit.isdisjoint(streams):
                kept += entries
            else:
                hit |= streams
                removed += entries
        self.staged = kept
        return removed

    def expire(self, now: float) -> int:
        """Answer the requests whose deadline has passed; how many those were."""
        if now < self.first_deadline:
            return 0
        waiting = [request for request in self.requests if not request.is_answered]
        late = [request for request in waiting if request.deadline <= now]
        for request in late:
            request.answer()
        self.first_deadline = min((r.deadline for r in waiting if r.deadline > now), default=math.inf)
        return len(late)
