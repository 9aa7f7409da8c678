"""One partition of an idempotent producer: what is unresolved there, and what may be sent next.

Place: idempotent_producer.py sends what a lane gives it, and tells the lane how that ended. Invariant: nothing is sent
that is five or more batches after the first unresolved one; an epoch's attempts of a batch carry the same sequence.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from headrace.agent.produce.refused_sequences import ELSEWHERE_SECONDS
from tests.simulation.clocks import CLOCK_RATES
from tests.simulation.messages import SEQUENCES, Batch
from tests.simulation.metadata import Place

IN_FLIGHT_MAX = 5


class Style(enum.Enum):
    PATIENT = enum.auto()
    JAVA = enum.auto()


@dataclass(eq=False, slots=True)
class Pending:
    """A batch that is not resolved. `sequence` is -1 until it is sent for the first time."""

    batch: Batch
    ordinal: int
    """Its place in the lane."""
    sequence: int = -1
    on_wire: bool = False
    was_head: bool = False
    """Everything before it was resolved when it was sent last."""
    first_sent_at: float = 0.0
    behind_since: float = 0.0
    """When the batch was first sent that was the first unresolved one when this one was sent last."""
    is_again: bool = False
    """It was sent to a topic that was deleted. All go through one connection, in order, so it goes alone."""
    is_behind_gap: bool = False
    """The deleted topic acknowledged the batch before it: this topic never gets that one, so this is out of order."""


class Lane:
    """One partition of one producer. `queue`: unresolved batches in order, the sent ones first."""

    def __init__(self, place: Place, style: Style, next_sequence: int) -> None:
        self.place = place
        self.style = style
        self.epoch = 0
        self.next_sequence = next_sequence
        self.queue: deque[Pending] = deque()
        self.not_before = 0.0
        self.failures = 0
        """Since the last batch was acknowledged."""
        self._has_gap = False
        """A batch was given up, and nothing sent after it was acknowledged yet."""
        self._left: list[Pending] = []
        self._is_draining = False
        self._wants_bump = False
        self._ordinals = 0
        self._end_sequence: int | None = None
        """Behind the last batch that has a sequence, if there is any in this epoch and topic."""
        self._is_unknown = False
        """The topic was created again, and has acknowledged nothing."""

    def next(self, now: float, gives_up_after: float) -> Pending | None:
        """Return what may be sent now."""
        self._tidy(now, gives_up_after)
        if now < self.not_before or self._is_draining or self._wants_bump:
            return None
        for pending in self.queue:
            if pending.on_wire:
                continue
            head = self.queue[0]
            must_wait = pending is not head and (head.is_again or (self.style is Style.JAVA and pending.sequence >= 0))
            must_wait = must_wait or (pending is not head and self._would_begin(pending))
            is_too_far = pending.ordinal - head.ordinal >= IN_FLIGHT_MAX
            return None if must_wait or is_too_far else pending
        return None

    def _would_begin(self, pending: Pending) -> bool:
        """Return whether a topic that was created again may take it for the producer's first batch, because sequences
        went over their end: through another agent it may arrive before the batches before it. Real clients have one
        connection, and keep the order.
        """
        sequence = self.next_sequence if pending.sequence < 0 else pending.sequence
        return self._is_unknown and sequence == 0

    def add(self, batch: Batch) -> None:
        """Add a batch to be sent after everything before it."""
        self._ordinals += 1
        self.queue.append(Pending(batch, self._ordinals))

    def sending(self, pending: Pending, now: float) -> None:
        if pending.sequence < 0:
            self._number(pending)
            pending.first_sent_at = now
        pending.on_wire = True
        pending.was_head = self.queue[0] is pending
        pending.behind_since = self.queue[0].first_sent_at

    def succeeded(self, pending: Pending) -> None:
        self.queue.remove(pending)
        self.failures = 0
        self._has_gap = self._is_unknown = False

    def failed(self, pending: Pending, not_before: float) -> None:
        """To be sent again."""
        self.failures += 1
        self.not_before = not_before
        self._is_draining = self.style is Style.PATIENT

    def out_of_order(self, pending: Pending, now: float) -> bool:
        """False when a correct server could not have said so: neighbours may travel through different agents, and an
        agent waits for what may be on its way through another one.

        If everything before it was acknowledged meanwhile, Java begins another epoch at once, also for what is on the
        wire: that may be stored under both epochs. The real librdkafka has no two agents in flight at once, and would
        stop; here it sends the batch again.
        """
        has_gap = self._has_gap or pending.is_behind_gap
        is_late = not pending.was_head and now - pending.behind_since >= ELSEWHERE_SECONDS / CLOCK_RATES[1]
        legal = has_gap or is_late
        if self.queue[0] is pending:
            if self.style is Style.JAVA and not has_gap:
                self._bump()
            elif has_gap or not legal:
                self._wants_bump = True
        return legal

    def is_behind(self, pending: Pending) -> bool:
        """Return whether an earlier batch is unresolved."""
        return self.queue[0] is not pending

    @property
    def is_drained(self) -> bool:
        """Whether nothing is on the wire."""
        return not any(pending.on_wire for pending in self.queue)

    def begin_epoch(self, epoch: int) -> None:
        """Number all that is unresolved from 0, under an epoch of the whole producer."""
        self.epoch = epoch - 1
        self._is_draining = False
        self._bump()

    def topic_is_gone(self) -> None:
        """Nothing is sent any more; what was sent and is unresolved is kept for a topic of the same name."""
        self._left += [pending for pending in self.queue if pending.sequence >= 0]
        self.queue.clear()

    @property
    def has_left(self) -> bool:
        """Whether something is kept for a topic of the same name."""
        return bool(self._left)

    def leave(self) -> list[Pending]:
        """Return what was sent and is unresolved, in order: a lane in the topic of the same name sends it again."""
        self.topic_is_gone()
        return self._left

    def go_on_from(self, before: Lane) -> None:
        """Be the lane after one in a deleted topic of the same name: in its epoch, and behind what it gave up."""
        self.epoch, self._has_gap, self._is_unknown = before.epoch, before._has_gap, True

    def send_again(self, copy: Batch, before: Pending) -> None:
        """Put batches back, to be sent before anything else, under the sequence that it had in the deleted topic."""
        self._ordinals += 1
        sent_at = before.first_sent_at
        again = Pending(copy, self._ordinals, before.sequence, first_sent_at=sent_at, is_again=True)
        self.queue.append(again)
        self._follow(again)

    @property
    def first_sequence(self) -> int:
        """First sequence of what is unresolved."""
        return self.queue[0].sequence if self.queue else self.next_sequence

    def bump_soon(self) -> None:
        """Continue under another epoch, once nothing is on the wire."""
        self._wants_bump = True

    def _tidy(self, now: float, gives_up_after: float) -> None:
        """Give up, bump, continue: what the state requires before the next send."""
        on_wire = any(pending.on_wire for pending in self.queue)
        while self.style is Style.JAVA and self.queue and _is_too_old(self.queue[0], now - gives_up_after):
            self.queue.popleft()
            self._has_gap = True
        if not on_wire:
            self._is_draining = False
            nothing_sent = all(pending.sequence < 0 for pending in self.queue)
            if self._wants_bump or (self._has_gap and nothing_sent):
                self._bump()

    def _bump(self) -> None:
        self.epoch += 1
        self.next_sequence, self._end_sequence = 0, None
        self._wants_bump = self._has_gap = False
        for pending in (*self._left, *self.queue):
            if pending.sequence >= 0:
                self._number(pending)

    def _number(self, pending: Pending) -> None:
        pending.sequence = self.next_sequence
        self._follow(pending)
        self.next_sequence = (self.next_sequence + pending.batch.count) % SEQUENCES

    def _follow(self, pending: Pending) -> None:
        """It is the last one that has a sequence."""
        pending.is_behind_gap = self._end_sequence not in (None, pending.sequence)
        self._end_sequence = (pending.sequence + pending.batch.count) % SEQUENCES


def _is_too_old(pending: Pending, sent_before: float) -> bool:
    return pending.sequence >= 0 and not pending.on_wire and pending.first_sent_at < sent_before
