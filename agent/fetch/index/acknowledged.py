"""How far this agent has acknowledged batches that its index may not have yet.

Place: filled by the write path's commit (feed.py); looked at by each fetch (handler.py).
Invariant: a client that got an acknowledgement from this agent finds the record here: its fetch catches up with the
feed once if the index ends before it, and shows no lower high watermark. A mark ends with a complete poll that began
after it was made, so the commits of a producer without readers cost no poll. A fetch takes its marks before it looks
into the index: what it found there is as old, also if a poll ends while it waits for the primary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.agent.fetch.lookup import Lookup, LookupStatus
from headrace.metastore.api.commit import BatchOutcome, FileAnswer, FileCommit
from headrace.metastore.api.read import ExtentQuery

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
