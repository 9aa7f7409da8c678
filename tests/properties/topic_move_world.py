"""A topic moves while producers write and consumers read, everything fails, and two movers are at work.

Place: run by test_topic_move.py with a seed; the rules are tests/model/topic_move.py.
Fault model: a request to a metastore is delivered later, or twice, or never; its answer may be lost; an agent crashes
and its clients turn to another one; an agent's view of the placement is as old as it likes; a mover crashes at any
step, or writes what it decided long ago.
Checked: every acknowledged record is at its offset in the end (nothing lost), no record is there twice unless its
client sent it twice (nothing doubled), the records of a producer are in its order, a reader never sees two records at
one offset, and never do two metastores take records.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.model.topic_move import (
    MovedBatch,
    MoveOutcome,
    Placement,
    TopicHome,
    TopicMetastore,
    TopicMover,
    TopicState,
    Write,
)

PRODUCERS = 4
"""The first half of them is idempotent."""
RECORDS = 12
"""Records of each producer."""
STEPS = 900
HEALED_STEPS = 3_000
TIME_OUT_STEPS = 150


@dataclass
class Sending:
    """What an agent does with one batch: under one file id at one metastore, until that one has decided."""

    batch: MovedBatch
    file_id: int
    at_source: bool


@dataclass
class Sender:
    """One client with one batch in flight, and the agent that it uses."""

    producer_id: int
    is_idempotent: bool
    next: int = 0
    """Records so far, those with an unknown fate included."""
    sending: Sending | None = None
    view: Placement = Placement.SOURCE
    """Its agent's."""
    waits_until: int = 0
    """It asks again after a time-out, which may be longer than the move."""


@dataclass
class TopicMoveWorld:
    """`run` explores one schedule; `problems` has what was wrong."""

    seed: int
    mover_class: type[TopicMover] = TopicMover
    source_class: type[TopicMetastore] = TopicMetastore
    destination_class: type[TopicMetastore] = TopicMetastore
    asks_source_first: bool = True
    """After a lost answer an agent asks the same metastore again, also when it knows that the topic has moved."""
    problems: list[str] = field(default_factory=list)

    def run(self) -> TopicMoveWorld:
        """Faults, then none, until the topic has moved and everything is sent."""
        self._rng = random.Random(self.seed)
        self.home = TopicHome()
        self.source = self.source_class(TopicState.LIVE)
        self.destination = self.destination_class(TopicState.ABSENT)
        self._movers = [self.mover_class(self.home, self.source, self.destination) for _ in range(2)]
        self._writes: list[Write | None] = [None, None]
        self._late: list[tuple[TopicMetastore, int, MovedBatch]] = []
        self._files = 0
        self._acknowledged: dict[int, int] = {}
        self._seen: dict[int, MovedBatch] = {}
        self.senders = [Sender(number, number < PRODUCERS // 2) for number in range(PRODUCERS)]
        for self._now in range(STEPS + HEALED_STEPS):
            self._step(faults=self._now < STEPS)
        self.problems += self._judge()
        return self

    def _step(self, *, faults: bool) -> None:
        kind = self._rng.random()
        if kind < 0.35:
            self._send(self._rng.choice(self.senders), faults=faults)
        elif kind < 0.45:
            self._read()
        elif kind < 0.52:
            self._deliver_late()
        elif kind < 0.62:
            self._rng.choice(self.senders).view = self.home.placement
        else:
            self._move(self._rng.randrange(2), faults=faults)
        if self.source.state is TopicState.LIVE and self.destination.state is TopicState.LIVE:
            self._note("two metastores take records")

    # -- clients and agents

    def _send(self, sender: Sender, *, faults: bool) -> None:
        if faults and self._now < sender.waits_until:
            return
        if sender.sending is None:
            if sender.next == RECORDS:
                return
            sender.sending = self._placed(sender, self._batch(sender))
        sending = sender.sending
        at = self.source if sending.at_source else self.destination
        lot = self._rng.random() if faults else 1.0
        if lot < 0.10:  # the request comes later, or never
            self._late.append((at, sending.file_id, sending.batch))
            self._no_answer(sender)
            return
        reply = at.commit(sending.file_id, sending.batch)
        if lot < 0.15:
            self._late.append((at, sending.file_id, sending.batch))
        if lot < 0.25:
            self._no_answer(sender)
        elif reply.outcome is MoveOutcome.MOVED:
            sender.view = self.home.placement
            sender.sending = self._placed(sender, sending.batch)
        else:
            self._answered(sender, sending, reply.outcome, reply.offset)

    def _batch(self, sender: Sender) -> MovedBatch:
        value = sender.producer_id * RECORDS + sender.next
        return MovedBatch(sender.producer_id if sender.is_idempotent else -1, sender.next, value)

    def _placed(self, sender: Sender, batch: MovedBatch) -> Sending:
        self._files += 1
        return Sending(batch, self._files, at_source=sender.view is not Placement.DESTINATION)

    def _no_answer(self, sender: Sender) -> None:
        """The agent asks again; or it crashes, and its client asks another agent or gives the record up."""
        assert sender.sending is not None
        sender.waits_until = self._now + self._rng.randrange(TIME_OUT_STEPS)
        if not self.asks_source_first and sender.view is Placement.DESTINATION and sender.sending.at_source:
            sender.sending = self._placed(sender, sender.sending.batch)
        if self._rng.random() < 0.2:
            if sender.is_idempotent:
                sender.sending = self._placed(sender, sender.sending.batch)
            else:
                sender.sending, sender.next = None, sender.next + 1

    def _answered(self, sender: Sender, sending: Sending, outcome: MoveOutcome, offset: int) -> None:
        if outcome is MoveOutcome.OUT_OF_ORDER:
            self._note(f"a sequence was refused: {sending.batch}")
        if offset >= 0:
            self._acknowledged[sending.batch.value] = offset
        sender.sending, sender.next = None, sender.next + 1

    def _deliver_late(self) -> None:
        if self._late:
            at, file_id, batch = self._late.pop(self._rng.randrange(len(self._late)))
            if self._rng.random() < 0.7:
                at.commit(file_id, batch)

    def _read(self) -> None:
        """A consumer at an agent that may believe that the topic is still at the source."""
        at = self._rng.choice((self.source, self.destination))
        for offset, batch in enumerate(at.read(0) or ()):
            if self._seen.setdefault(offset, batch) != batch:
                self._note(f"offset {offset} was {self._seen[offset]}, and is {batch}")

    # -- movers

    def _move(self, number: int, *, faults: bool) -> None:
        write, self._writes[number] = self._writes[number], None
        if write is None:
            self._writes[number] = self._movers[number].look()
        elif not faults or self._rng.random() > 0.25:  # else it crashed before the write
            write()
            if faults and self._rng.random() < 0.2:
                self._writes[number] = write  # and comes again

    # -- judgment

    def _judge(self) -> Iterator[str]:
        log: Sequence[MovedBatch] = self.destination.log
        if self.home.placement is not Placement.DESTINATION or self.destination.state is not TopicState.LIVE:
            yield "the topic did not arrive"
        if any(sender.next < RECORDS for sender in self.senders):
            yield "a producer did not finish"
        for value, offset in self._acknowledged.items():
            if offset >= len(log) or log[offset].value != value:
                yield f"lost: value={value} offset={offset}"
        for value, times in Counter(batch.value for batch in log).items():
            if times > 1:
                yield f"doubled: value={value}"
        for producer in range(PRODUCERS // 2):
            sequences = [batch.sequence for batch in log if batch.producer_id == producer]
            if sequences != sorted(sequences):
                yield f"reordered: producer={producer} {sequences}"
        for offset, batch in self._seen.items():
            if offset >= len(log) or log[offset] != batch:
                yield f"seen and gone: offset={offset} {batch}"

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
