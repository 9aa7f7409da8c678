"""The sequences that this agent refused lately, so that the batches behind them are not called out of order.

Place: filled by receive and acknowledge, which answer a batch with an error after which the client sends it again; read
by acknowledge when the commit says OUT_OF_ORDER.
A client has up to five batches of a partition in flight. If the first one is refused, the others are out of order for
the commit, and librdkafka answers that error with a new epoch for all partitions: it then sends batches a second time
that were stored but not answered. So the error becomes the retriable one that the first batch got.
The first batch may also be on its way through another agent: the leader moved, or a connection was cut and the next one
reached another agent. Java then begins another epoch, and stores a second time what the other agent commits meanwhile.
So a gap is waited for, ELSEWHERE_SECONDS from its first sight. A gap is known by the sequence that the partition
expects: while that stays, no later batch begins the wait again; once it has moved on, what is missing is another batch.
Invariant: only the commit judges a batch. A note explains its OUT_OF_ORDER and never prevents anything else. A note
ends when its sequence or a later one is stored, with a higher epoch, or NOTED_SECONDS after the refusal; a refusal that
a note explains does not last longer than this note. Around the beginning of a life of the metastore, notes end sooner:
what another agent stored may be lost. So do those of a process that just started, because a life may have begun shortly
before. Notes take NOTES_BYTES_MAX at most: what has no room is not noted.
"""

from __future__ import annotations

import math
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from headrace.config.memory_budget import REFUSED_SEQUENCES_BYTES

NOTED_SECONDS = 120.0
"""The default delivery timeout of Java and aiokafka: after it the client has given the batch up."""
NEW_LIFE_SECONDS = 30.0
"""How long a note lasts in the first NOTED_SECONDS of a life of the metastore: the default request timeout, after which
what was on the wire behind the refused batch has its answer."""
ELSEWHERE_SECONDS = 30.0
"""How long a batch may be on its way through another agent: the default request timeout of clients."""
NOTES_BYTES_MAX = REFUSED_SEQUENCES_BYTES
PRODUCER_BYTES = 640
"""One producer in one partition, without sequences."""
SEQUENCE_BYTES = 128
SEQUENCES_PER_PRODUCER = 16
"""Limit for one partition. Clients have at most five batches in flight."""
_SEQUENCES = 1 << 31

Place = tuple[int | str | uuid.UUID, int]
"""A partition: (topic number, index); (name or id, index) if the agent does not know the topic yet."""
NamesOf = Callable[[int], tuple[str, uuid.UUID] | None]
"""The name and id of the topic with this number; None if it is gone."""


class Numbered(NamedTuple):
    """What identifies one batch of a producer in a partition."""

    producer_id: int
    epoch: int
    sequence: int
    place: Place


class _Producer:
    """One producer in one partition. `refused`: (sequence, NOTED_SECONDS before its note ends), in the order of the
    refusals. `gap`: (the sequence that was missing, when a batch behind it was first out of order and nothing here
    explained it)."""

    __slots__ = ("epoch", "gap", "refused")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.refused: list[tuple[int, float]] = []
        self.gap: tuple[int, float] | None = None

    def waits_for(self, missing: int) -> bool:
        """Return whether the gap is the one before which this sequence is expected."""
        return self.gap is not None and self.gap[0] == missing

    @property
    def noted_at(self) -> float:
        """The newest of its times."""
        return max([at for _, at in self.refused] + ([] if self.gap is None else [self.gap[1]]), default=-math.inf)


class RefusedSequences:
    """Notes of refused batches. Times in seconds on Clock.monotonic()."""

    def __init__(self, names_of: NamesOf, started_at: float, bytes_max: int = NOTES_BYTES_MAX) -> None:
        self._names_of = names_of
        self._bytes_max = bytes_max
        self._producers: OrderedDict[tuple[int, Place], _Producer] = OrderedDict()
        """The producer with the oldest last refusal first."""
        self.held_bytes = 0
        self._life_began_at = started_at

    def __len__(self) -> int:
        """Return how many producers have notes, counted by partition."""
        return len(self._producers)

    def note(self, batch: Numbered, now: float) -> None:
        """Remember that the batch was refused, and that its client sends it again."""
        self.expire(now)
        as_of = now if now >= self._life_began_at + NOTED_SECONDS else _ends_soon(now)
        key = batch.producer_id, batch.place
        if (found := self._producer_of(batch)) is None:
            return
        self._drop(found, {batch.sequence})
        if len(found.refused) < SEQUENCES_PER_PRODUCER and self.held_bytes + SEQUENCE_BYTES <= self._bytes_max:
            found.refused.append((batch.sequence, as_of))
            self.held_bytes += SEQUENCE_BYTES
            self._producers.move_to_end(key)

    def stored(self, batch: Numbered) -> None:
        """End the notes of this sequence and of earlier ones: the batch was appended, or is a duplicate."""
        for key in self._keys(batch):
            found = self._producers.get(key)
            if found is None or batch.epoch < found.epoch:
                continue
            if batch.epoch == found.epoch:
                self._drop(found, {each for each, _ in found.refused if not is_before(batch.sequence, each)})
                if found.gap is not None and not is_before(batch.sequence, found.gap[0]):
                    found.gap = None
            if batch.epoch > found.epoch or not (found.refused or found.gap):
                self._forget(key)

    def explain(self, batch: Numbered, now: float) -> bool:
        """Return whether an earlier sequence of the same epoch was refused here, which is why this batch is out of
        order.

        If so, the batch is noted in the same way, for as long as the note that explains it: others may be behind it.
        """
        times = [
            at
            for key in self._keys(batch)
            if (found := self._producers.get(key)) is not None and found.epoch == batch.epoch
            for sequence, at in found.refused
            if is_before(sequence, batch.sequence) and now - at < NOTED_SECONDS
        ]
        if times:
            self._note_as_of(batch, max(times), now)
        return bool(times)

    def see_gap(self, batch: Numbered, now: float, *, missing: int) -> None:
        """Begin the time of `explain_by_another_agent` for a gap that a note explains for now."""
        found = self._producers.get((batch.producer_id, batch.place))
        if found is not None and found.epoch == batch.epoch and not found.waits_for(missing):
            found.gap = missing, now

    def explain_by_another_agent(self, batch: Numbered, now: float, *, missing: int, is_settled: bool) -> bool:
        """Return whether an earlier batch of the same epoch may be on its way through another agent.

        `missing`: the sequence that the partition expects; negative if that is not known. `is_settled`: all that may be
        missing came as this batch did (last_stored.py); then only a gap that is waited for already counts. A gap is
        waited for once, ELSEWHERE_SECONDS in all, and is final for the rest of NOTED_SECONDS; what is out of order
        meanwhile is noted for as long.
        """
        self.expire(now)
        before = self._producers.get((batch.producer_id, batch.place))
        if is_settled and (before is None or before.epoch != batch.epoch or not before.waits_for(missing)):
            return False
        if (found := self._producer_of(batch)) is None:
            return False
        if found.gap is None or not found.waits_for(missing) or now - found.gap[1] >= NOTED_SECONDS:
            found.gap = missing, now
            self._producers.move_to_end((batch.producer_id, batch.place))
        first_seen = found.gap[1]
        if now - first_seen >= ELSEWHERE_SECONDS:
            return False
        self._note_as_of(batch, first_seen + ELSEWHERE_SECONDS - NOTED_SECONDS, now)
        return True

    def life_begins(self, now: float) -> None:
        """Let notes end soon, and those of late refusals too.

        If another agent stored the refused batch and a failover lost it, its client does not send it again, and needs
        the answer that what is behind it is out of order.
        """
        self._life_began_at = now
        for producer in self._producers.values():
            producer.refused = [(sequence, min(at, _ends_soon(now))) for sequence, at in producer.refused]

    def expire(self, now: float) -> None:
        """Forget producers without a refusal in NOTED_SECONDS."""
        while self._producers:
            key, oldest = next(iter(self._producers.items()))
            if now - oldest.noted_at < NOTED_SECONDS:
                return
            self._forget(key)

    def _note_as_of(self, batch: Numbered, at: float, now: float) -> None:
        key = batch.producer_id, batch.place
        before = self._producers.get(key)
        earlier = [] if before is None else [time for sequence, time in before.refused if sequence == batch.sequence]
        self.note(batch, now)
        found = self._producers.get(key)
        if found is not None and found.refused and found.refused[-1][0] == batch.sequence:
            found.refused[-1] = batch.sequence, max([at, *earlier])

    def _producer_of(self, batch: Numbered) -> _Producer | None:
        """Return the batch's producer in its epoch, a new one if there is none; None for an earlier epoch, and without
        room."""
        key = batch.producer_id, batch.place
        found = self._producers.get(key)
        if found is not None and found.epoch != batch.epoch:
            if batch.epoch < found.epoch:
                return None
            self._forget(key)
            found = None
        if found is None:
            if self.held_bytes + PRODUCER_BYTES + SEQUENCE_BYTES > self._bytes_max:
                return None
            found = self._producers[key] = _Producer(batch.epoch)
            self.held_bytes += PRODUCER_BYTES
        return found

    def _keys(self, batch: Numbered) -> list[tuple[int, Place]]:
        """Return where the batch's producer may have notes: also from when the agent did not know the topic."""
        topic, index = batch.place
        names = self._names_of(topic) if isinstance(topic, int) else None
        return [(batch.producer_id, (each, index)) for each in (topic, *(names or ()))]

    def _drop(self, found: _Producer, sequences: set[int]) -> None:
        kept = [note for note in found.refused if note[0] not in sequences]
        self.held_bytes -= SEQUENCE_BYTES * (len(found.refused) - len(kept))
        found.refused = kept

    def _forget(self, key: tuple[int, Place]) -> None:
        found = self._producers.pop(key)
        self.held_bytes -= PRODUCER_BYTES + SEQUENCE_BYTES * len(found.refused)


def _ends_soon(now: float) -> float:
    """The time of a note that ends NEW_LIFE_SECONDS from now."""
    return now + NEW_LIFE_SECONDS - NOTED_SECONDS


def sequence_after(sequence: int, records: int) -> int:
    """Return the sequence of the record that follows this many records from `sequence` on."""
    return (sequence + records) % _SEQUENCES


def is_before(sequence: int, other: int) -> bool:
    """Return whether `sequence` comes earlier; sequences continue at 0 after 2**31 - 1."""
    return 0 < (other - sequence) % _SEQUENCES <= _SEQUENCES // 2
