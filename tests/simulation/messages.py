"""What clients send and what became of it, as the clients saw it.

Invariant: the records of every batch are unique in a run, so that stored or fetched bytes tell which
batch they are, with any header, and which batches were merged into one. An attempt without an answer
stays unknown; every other answer is definite, except REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.storage.errors import HeadraceError
from headrace.storage.records.codec import Record, decode_records
from headrace.storage.records.header import HEADER_BYTES
from tests.simulation.metadata import Place
from tests.storage.batches import plain_batch

OK = 0
TIMED_OUT = int(ErrorCode.request_timed_out)
SEQUENCES = 2**31


@dataclass(eq=False, slots=True)
class Attempt:
    """One time that a batch was sent. Times in virtual seconds; `code` None while there is no answer."""

    batch: Batch
    producer_id: int
    epoch: int
    sequence: int
    connection: int
    sent_at: float
    process: int = -1
    """The life of an agent that it was sent to."""
    is_replay: bool = False
    """Delivered again by the network: no client waits for its answer."""
    arrived_at: float | None = None
    settled_at: float | None = None
    """The time when the agent had its answer ready."""
    answered_at: float | None = None
    code: int | None = None
    base_offset: int = -1
    append_time_ms: int = -1

    @property
    def is_ok(self) -> bool:
        return self.code == OK

    @property
    def is_refused(self) -> bool:
        """Certainly not stored by this attempt."""
        return self.code is not None and self.code not in (OK, TIMED_OUT)

    @property
    def identity(self) -> tuple[int, int, int]:
        """What the metastore tells batches of a partition apart by."""
        return self.producer_id, self.epoch, self.sequence


@dataclass(eq=False, slots=True)
class Batch:
    """`number` is unique in a run and grows along each producer's sends."""

    number: int
    producer: str
    place: Place
    count: int
    timestamp: int
    records: bytes
    is_idempotent: bool
    again: Batch | None = None
    """The batch in a deleted topic that its producer sends again as this one."""
    attempts: list[Attempt] = field(default_factory=list)

    def in_place(self, place: Place) -> Batch | None:
        """This batch, or the one that it is sent again for, as it was sent to this partition; None if it was not."""
        if self.place == place:
            return self
        return None if self.again is None else self.again.in_place(place)

    def encode(self, producer_id: int, epoch: int, sequence: int) -> bytes:
        """The batch on the wire."""
        return plain_batch(
            self.count,
            value_of(self.number),
            base_timestamp=self.timestamp,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )

    def __str__(self) -> str:
        return f"batch={self.number} producer={self.producer} place={self.place}"


class Member(NamedTuple):
    """A batch inside a stored one. `records_before`: how many of others are before it there."""

    batch: Batch
    records_before: int


class Messages:
    """All batches of a run."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._by_records: dict[bytes, Batch] = {}
        self._by_value: dict[bytes, Batch] = {}
        self._merged: dict[bytes, list[Member]] = {}

    def create(
        self,
        producer: str,
        place: Place,
        count: int,
        timestamp: int,
        *,
        is_idempotent: bool,
        again: Batch | None = None,
    ) -> Batch:
        number = len(self.batches) + 1
        records = plain_batch(count, value_of(number), base_timestamp=timestamp)[HEADER_BYTES:]
        batch = Batch(number, producer, place, count, timestamp, records, is_idempotent, again)
        self.batches.append(batch)
        self._by_records[records] = batch
        self._by_value[value_of(number)] = batch
        return batch

    def open(self, data: bytes | memoryview) -> list[Member]:
        """The batches that this one stored batch holds, in order; none when it is not wholly what was sent."""
        records = bytes(data[HEADER_BYTES:])
        alone = self._by_records.get(records)
        if alone is not None:
            return [Member(alone, 0)]
        if records not in self._merged:
            self._merged[records] = self._split(data)
        return self._merged[records]

    def _split(self, data: bytes | memoryview) -> list[Member]:
        try:
            records = decode_records(memoryview(data))
        except HeadraceError:
            return []
        members: list[Member] = []
        at = 0
        while at < len(records):
            batch = self._by_value.get(records[at].value or b"")
            if batch is None or not _is_whole(batch, records[at : at + batch.count]):
                return []
            members.append(Member(batch, at))
            at += batch.count
        return members


def value_of(number: int) -> bytes:
    """Return what each record of the batch holds."""
    return b"batch %d" % number


def _is_whole(batch: Batch, records: Sequence[Record]) -> bool:
    """Return whether these are the batch's records, all of them, in order and with their times."""
    value = value_of(batch.number)
    times = range(batch.timestamp, batch.timestamp + batch.count)
    return [record.value for record in records] == [value] * batch.count and (
        batch.place.topic.stamps or [record.timestamp for record in records] == list(times)
    )
