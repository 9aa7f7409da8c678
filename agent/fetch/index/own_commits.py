"""What this agent's own commits mean to its readers before the feed has brought them.

Place: between the write path's commit and the feed: feed.py fills all three parts with each commit's answer.
    appended_extents    what the answers say that readers see: then they need no poll of the feed
    AcknowledgedEnds    how far this agent acknowledged batches that its index may not have yet: each fetch looks at
                        it
    OwnCommits          what it committed lately, for the list of what a failover may have lost: read when the
                        metastore
                        goes back or begins a new life. Between a commit and the poll that brings its row, only this
                        agent knows the row for certain, because other agents need not follow its commit shard. After
                        a
                        failover that lost it, a poll does not bring it, and looks complete
Invariant: `appended_extents` says all that the call appended, or nothing. The extents are those of the feed: a
partition's neighbours in one file are one extent.
A client that got an acknowledgement from this agent finds the record here: its fetch catches up with the feed once
if the index ends before it, and shows no lower high watermark. A mark ends with a complete poll that began after it
was made, so the commits of a producer without readers cost no poll. A fetch takes its marks before it looks into the
index: what it found there is as old, also if a poll ends while it waits for the primary.
A commit is kept until `KEEP_SECONDS` after the first complete poll that began after its answer, unless there are
more than `BATCHES_MAX` later batches.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.agent.fetch.index.tail import Lookup, LookupStatus
from headrace.metastore.api.commit import (
    NO_ALIAS,
    BatchOutcome,
    BatchTransaction,
    FileAnswer,
    FileCommit,
    MovedKeys,
    StagedBatch,
)
from headrace.metastore.api.read import Extent, ExtentQuery

PARTITIONS_MAX = 10_000
"""Partitions with a mark; if there are more, every partition counts as marked until the next poll."""
_DUPLICATE_SEQUENCE = BatchOutcome.DUPLICATE_SEQUENCE


class Marks(NamedTuple):
    """The marks of a fetch's partitions, as they were before its look-up."""

    ends: Mapping[int, int]
    more: bool
    life: int
    """The number of the life of the metastore, from this agent's start on."""


class AcknowledgedEnds:
    """Marks by partition key, from one poll of the feed to the next."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._polled: dict[int, int] = {}
        """What the poll that is under way will bring."""
        self._more = self._more_polled = False
        """Whether something was acknowledged that no mark tells: the end of a transaction."""
        self._life = 0

    def note(self, commits: Sequence[FileCommit], answers: Sequence[FileAnswer]) -> None:
        """A commit appended these batches, or found them to be duplicates."""
        ends = self._ends
        for commit, answer in zip(commits, answers, strict=True):
            for batch, judged in zip(commit.batches, answer.batches, strict=False):  # none of a file that failed
                base_offset = judged.base_offset
                if base_offset >= 0:
                    end = base_offset + batch.record_count
                    if end > ends.get(batch.partition_key, 0):
                        ends[batch.partition_key] = end
                elif judged.outcome is _DUPLICATE_SEQUENCE:
                    self._more = True
        if len(ends) > PARTITIONS_MAX:
            self.note_all()

    def note_all(self) -> None:
        """Something was acknowledged of which only the feed tells where it is."""
        self._more = True
        self._ends.clear()

    def forget(self) -> None:
        """All of it was of another life of the metastore."""
        self._ends, self._polled = {}, {}
        self._more = self._more_polled = False
        self._life += 1

    def begin_poll(self) -> None:
        """A poll is about to be sent: it brings what was noted before."""
        self._polled, self._ends = self._ends, {}
        self._more_polled, self._more = self._more, False

    def end_poll(self, *, is_complete: bool) -> None:
        """The poll was answered, or failed."""
        polled, self._polled = self._polled, {}
        if not is_complete:
            self._more |= self._more_polled
            self._ends = {key: max(end, polled.get(key, 0)) for key, end in (polled | self._ends).items()}
        self._more_polled = False

    def marks(self, queries: Sequence[ExtentQuery]) -> Marks | None:
        """Return what is marked now of these partitions; None if nothing is."""
        more = self._more or self._more_polled
        if not (more or self._ends or self._polled):
            return None
        ends = {key: end for key, _, _ in queries if (end := self._end(key))}
        return Marks(ends, more, self._life) if ends or more else None

    def is_missing(self, marks: Marks, query: ExtentQuery, lookup: Lookup) -> bool:
        """Return whether a look-up ends where the index does, and this agent had acknowledged more."""
        if lookup.status is not LookupStatus.FOUND:
            return False
        if marks.more:
            return True
        end = lookup.extents[-1].last_offset + 1 if lookup.extents else query.offset
        return not lookup.cut and lookup.high_watermark <= end < self._end_of(marks, query)

    def raised(self, marks: Marks, query: ExtentQuery, lookup: Lookup) -> Lookup:
        """The look-up with a high watermark that is no lower than what this agent had acknowledged."""
        end = self._end_of(marks, query)
        if lookup.status is not LookupStatus.FOUND or end <= lookup.high_watermark:
            return lookup
        return lookup._replace(high_watermark=end)

    def _end_of(self, marks: Marks, query: ExtentQuery) -> int:
        """0 in another life of the metastore, which may lack it."""
        return marks.ends.get(query.partition_key, 0) if marks.life == self._life else 0

    def _end(self, key: int) -> int:
        return max(self._ends.get(key, 0), self._polled.get(key, 0))


NO_TRANSACTION, UNKNOWN_KEYS = int(BatchTransaction.NO_TRANSACTION), int(MovedKeys.UNKNOWN)
"""Not the members of the enums: these are compared for each batch."""


def appended_extents(commits: Sequence[FileCommit], answers: Sequence[FileAnswer]) -> list[Extent] | None:
    """Return the appended extents in the order of the files. None if the answers do not tell: for a transaction,
    what is open; for a batch that was accepted under any leader epoch or for an alias, the epoch and the partition.
    """
    found: list[Extent] = []
    for commit, answer in zip(commits, answers, strict=True):
        run: list[tuple[StagedBatch, int]] = []
        for batch, judged in zip(commit.batches, answer.batches, strict=False):  # none of a file that failed
            if batch.transaction != NO_TRANSACTION or batch.leader_epoch < 0:
                return None
            if batch.keys != UNKNOWN_KEYS or batch.alias != NO_ALIAS:
                return None
            if judged.outcome != BatchOutcome.APPENDED:
                continue
            if run and not _follows(run[-1], batch, judged.base_offset):
                found.append(_extent(commit.file_id, run))
                run = []
            run.append((batch, judged.base_offset))
        if run:
            found.append(_extent(commit.file_id, run))
    return found


def _follows(before: tuple[StagedBatch, int], batch: StagedBatch, base_offset: int) -> bool:
    """Return whether a batch is the neighbour of one, in the file and in the partition."""
    earlier, offset = before
    return (
        batch.position == earlier.position + earlier.length
        and base_offset == offset + earlier.record_count
        and batch.partition_key == earlier.partition_key
    )


def _extent(file_id: uuid.UUID, run: Sequence[tuple[StagedBatch, int]]) -> Extent:
    (first, base_offset), (last, last_base) = run[0], run[-1]
    return Extent(
        first.partition_key,
        base_offset,
        last_base + last.record_count - 1,
        file_id,
        first.position,
        last.position + last.length - first.position,
        first.leader_epoch,
        max(batch.max_timestamp for batch, _ in run),
    )


KEEP_SECONDS = 30.0
"""Longer than a process takes to learn that its server is no longer the metastore."""
BATCHES_MAX = 3_000
"""About 1 MB, and more than an agent commits between two polls."""


class OwnCommits:
    """One agent's, oldest first."""

    def __init__(self, batches_max: int = BATCHES_MAX) -> None:
        self._batches_max = batches_max
        self._polled: deque[tuple[float, FileCommit, FileAnswer]] = deque()
        """Those before a complete poll, with its time."""
        self._new: deque[tuple[FileCommit, FileAnswer]] = deque()
        self._before_poll = 0
        """How many of `_new` the poll that is under way was sent after."""
        self._batches = 0

    @property
    def held_batches(self) -> int:
        """Number of batches that are kept."""
        return self._batches

    def note(self, commits: Sequence[FileCommit], answers: Sequence[FileAnswer]) -> None:
        """These files were committed."""
        for commit, answer in zip(commits, answers, strict=True):
            if answer.batches:
                self._new.append((commit, answer))
                self._batches += len(answer.batches)
        while self._batches > self._batches_max:
            self._forget_oldest()

    def begin_poll(self) -> None:
        """A poll is about to be sent."""
        self._before_poll = len(self._new)

    def end_poll(self, now: float, *, is_complete: bool) -> None:
        """The poll was answered, or failed."""
        for _ in range(self._before_poll if is_complete else 0):
            self._polled.append((now, *self._new.popleft()))
        self._before_poll = 0
        while self._polled and self._polled[0][0] < now - KEEP_SECONDS:
            self._forget_oldest()

    def forget(self) -> None:
        """All of them are of another life of the metastore."""
        self._polled.clear()
        self._new.clear()
        self._before_poll = self._batches = 0

    def extents(self, without: Iterable[Extent]) -> list[Extent]:
        """Return what they appended, but for these extents. Those of which the answers do not tell all are left out."""
        known = {(extent.source, extent.partition_key, extent.base_offset) for extent in without}
        kept = [*((commit, answer) for _, commit, answer in self._polled), *self._new]
        return [
            extent
            for commit, answer in kept
            for extent in appended_extents([commit], [answer]) or ()
            if (extent.source, extent.partition_key, extent.base_offset) not in known
        ]

    def _forget_oldest(self) -> None:
        if self._polled:
            answer = self._polled.popleft()[2]
        else:
            answer = self._new.popleft()[1]
            self._before_poll = max(0, self._before_poll - 1)
        self._batches -= len(answer.batches)
