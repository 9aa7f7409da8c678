"""Moving a topic between two metastores: what each of them, the home metastore and the mover do (decisions/0064).

Place: a design as code, before there is any: explored by tests/properties/test_topic_move.py. One topic with one
partition; batches of one record. Pure: every call is one transaction of one metastore.
Invariant: the source is fenced before the destination takes a record, and a metastore that is fenced stays so. Every
step may be repeated, and may come late: the metastores judge by their own state, never by what the mover believes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

COPY_ROWS = 3
"""Rows of one copying step."""


class MovedBatch(NamedTuple):
    """A record; `producer_id` -1: not idempotent. `value` names it among all."""

    producer_id: int
    sequence: int
    value: int


class MoveOutcome(enum.Enum):
    """Outcome of one commit."""

    APPENDED = enum.auto()
    DUPLICATE = enum.auto()
    OUT_OF_ORDER = enum.auto()
    MOVED = enum.auto()
    """The topic is not here, or not any more: nothing happened, and under this file id nothing ever will, if this is
    the source of a move."""


class CommitReply(NamedTuple):
    """`offset` -1 if there is none."""

    outcome: MoveOutcome
    offset: int = -1


class TopicState(enum.Enum):
    """State of the topic in one metastore."""

    ABSENT = enum.auto()
    STAGED = enum.auto()
    LIVE = enum.auto()
    FENCED = enum.auto()
    """Takes no record; rows and answers are still read."""
    GONE = enum.auto()
    """Rows are deleted; answers are kept for as long as an agent may ask."""


class TopicMetastore:
    """One metastore's part of the topic."""

    def __init__(self, state: TopicState) -> None:
        self.state = state
        self.log: list[MovedBatch] = []
        self.next_sequence: dict[int, int] = {}
        self.answers: dict[int, CommitReply] = {}

    def commit(self, file_id: int, batch: MovedBatch) -> CommitReply:
        """Idempotent by file id: the answer of the first call that was decided, also after the topic has moved."""
        if file_id in self.answers:
            return self.answers[file_id]
        if self.state is not TopicState.LIVE:
            return CommitReply(MoveOutcome.MOVED)
        reply = self._judge(batch)
        self.answers[file_id] = reply
        return reply

    def _judge(self, batch: MovedBatch) -> CommitReply:
        if batch.producer_id >= 0:
            expected = self.next_sequence.get(batch.producer_id, 0)
            if batch.sequence < expected:
                first = next((offset for offset, each in enumerate(self.log) if each[:2] == batch[:2]), -1)
                return CommitReply(MoveOutcome.DUPLICATE, first)
            if batch.sequence > expected:
                return CommitReply(MoveOutcome.OUT_OF_ORDER)
            self.next_sequence[batch.producer_id] = expected + 1
        self.log.append(batch)
        return CommitReply(MoveOutcome.APPENDED, len(self.log) - 1)

    def read(self, offset: int) -> Sequence[MovedBatch] | None:
        """The records from the offset on; None: not here."""
        return self.log[offset:] if self.state in (TopicState.LIVE, TopicState.FENCED) else None

    def fence(self) -> None:
        """The source takes no more records. Waits for commits in progress, because it takes their shards' locks."""
        if self.state is TopicState.LIVE:
            self.state = TopicState.FENCED

    def stage(self, first: int, rows: Sequence[MovedBatch]) -> None:
        """The destination keeps copied rows, which no reader gets yet. Without effect if they are there, if there would
        be a gap, or if the topic is live."""
        if self.state not in (TopicState.ABSENT, TopicState.STAGED) or first > len(self.log):
            return
        self.state = TopicState.STAGED
        self.log += rows[len(self.log) - first :]

    def activate(self, end: int, next_sequence: Mapping[int, int]) -> None:
        """The destination takes records from `end` on, if it has all rows before."""
        if self.state is TopicState.STAGED and len(self.log) == end:
            self.next_sequence = dict(next_sequence)
            self.state = TopicState.LIVE

    def clean_up(self) -> None:
        """The source forgets the rows."""
        if self.state is TopicState.FENCED:
            self.state = TopicState.GONE
            self.log, self.next_sequence = [], {}


class Placement(enum.Enum):
    """What the home metastore's log says of the topic; it only goes forward."""

    SOURCE = enum.auto()
    MOVING = enum.auto()
    DESTINATION = enum.auto()


class TopicHome:
    """The home metastore."""

    def __init__(self) -> None:
        self.placement = Placement.SOURCE

    def record(self, placement: Placement) -> None:
        """A record of the metadata log, conditional on the one before."""
        if placement.value == self.placement.value + 1:
            self.placement = placement


Write = Callable[[], None]


class TopicMover:
    """A job. `look` reads, and returns the write that it decided on: the write may come much later, or never."""

    def __init__(self, home: TopicHome, source: TopicMetastore, destination: TopicMetastore) -> None:
        self._home, self._source, self._destination = home, source, destination

    def look(self) -> Write | None:
        """The next step by what the metastores say now: a mover remembers nothing. None: the topic has moved."""
        if self._home.placement is Placement.SOURCE:
            return lambda: self._home.record(Placement.MOVING)
        if self._home.placement is Placement.DESTINATION:
            return self._source.clean_up if self._source.state is TopicState.FENCED else None
        if self._destination.state is TopicState.LIVE:
            return lambda: self._home.record(Placement.DESTINATION)
        return self._look_at_rows()

    def _look_at_rows(self) -> Write:
        copied, end = len(self._destination.log), len(self._source.log)
        if self._source.state is TopicState.LIVE and end - copied <= COPY_ROWS:
            return self._source.fence  # the rest is short: clients wait only for that
        if copied < end or self._destination.state is TopicState.ABSENT:
            rows = tuple(self._source.log[copied : copied + COPY_ROWS])
            return lambda: self._destination.stage(copied, rows)
        state = dict(self._source.next_sequence)
        return lambda: self._destination.activate(end, state)
