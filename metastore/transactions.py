"""The rules of transactions: what each request of a transactional producer changes, how outcomes are recorded.

Place: above metastore/api and below metastore/postgres/transactions, which reads a row, has the decision made here,
and writes the result if the row is still of the same version, else asks again. end_transaction.sql writes a marker
as an extent of one offset, which agent/fetch renders as Kafka's control batch. compactor/outcomes.py writes outcomes
to the bucket while the cluster runs; a rebuild reads them, when nothing else is left. Pure.
Invariant of markers: a marker's row says all that its batch holds: file_id has producer id, epoch and outcome,
position has the time. No file has such an id: its version is 0, those of segment files are 7 and 8.
Source: KIP-98 (control batches). The coordinator epoch in the record is 0: no epoch of a coordinator exists here.
Invariant of the state machine: a request of a fenced producer changes nothing. A transaction ends once; a repeated
request gets the first answer. A step with an `end` closes the transaction: markers, offsets and the new row are
written in one statement.
No epoch is above EPOCH_MAX + 1, which fences the last epoch: no request may name it, so no transaction begins under
it.
Source: KIP-98; KIP-360 (a producer that keeps its id); KIP-890 (`bumps`: each end gives the producer another epoch).
Invariant of outcomes: the outcome of a batch is known only if the bucket names it without contradiction:
after a promotion, a transaction may have been ended a second time, differently: then what readers saw is not known.
Layout: objects of recorded_objects.py below `metastore/transactions/`; an entry is a list of the fields of
TransactionOutcome.
Source: KIP-98 (sequences of a producer in a partition rise with its batches).
"""

from __future__ import annotations

import struct
import uuid
from collections import defaultdict
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from headrace.metastore.api.outcomes import TransactionOutcome
from headrace.metastore.api.read import Extent
from headrace.metastore.api.transactions import (
    EPOCH_MAX,
    NO_PRODUCER,
    ProducerEpoch,
    Transaction,
    TransactionState,
    TransactionVerdict,
)
from headrace.metastore.recorded_objects import RecordedObject, list_in_force, read_entries
from headrace.storage.objects.store import ObjectStore
from headrace.storage.records.codec import Record, encode_control_batch

MARKER_BYTES = 78
"""Size of every marker's batch; the length of its extent."""
_FILE_ID = struct.Struct(">4xhxBq")
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class Marker(NamedTuple):
    """The outcome of a producer's transaction in one partition."""

    producer_id: int
    epoch: int
    commits: bool


def marker_file_id(marker: Marker) -> uuid.UUID:
    """The file_id of a marker's extent; as marker_file_id in SQL."""
    return uuid.UUID(bytes=_FILE_ID.pack(marker.epoch, marker.commits, marker.producer_id))


def marker_of(source: uuid.UUID) -> Marker | None:
    """The marker that the source of an extent means; None for a file."""
    if source.bytes[6] >> 4:
        return None
    epoch, commits, producer_id = _FILE_ID.unpack(source.bytes)
    return Marker(producer_id, epoch, bool(commits))


def render_marker(extent: Extent) -> bytes:
    """The control batch of a marker's extent, with its offset and leader epoch."""
    marker = marker_of(extent.source)
    assert marker is not None, "not a marker"
    record = Record(
        offset=extent.base_offset,
        timestamp=extent.position,
        key=_KEY.pack(0, marker.commits),
        value=_VALUE.pack(0, 0),
    )
    return encode_control_batch(
        record, producer_id=marker.producer_id, producer_epoch=marker.epoch, leader_epoch=extent.leader_epoch
    )


_OUTCOMES = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """How the open transaction ends: with markers of this epoch in each of its partitions."""

    commits: bool
    marker_epoch: int


@dataclass(frozen=True, slots=True)
class TransactionStep:
    """The decision on one request."""

    verdict: TransactionVerdict
    after: Transaction | None = None
    """What is stored from now on; None: nothing changes."""
    end: TransactionEnd | None = None
    producer: ProducerEpoch = NO_PRODUCER
    """How the client continues, if the verdict is DONE."""


def init_producer(
    found: Transaction | None, transactional_id: str, timeout_ms: int, asked: ProducerEpoch, new_producer_id: int
) -> TransactionStep:
    """InitProducerId: the producer gets an identity that fences all earlier ones; an open transaction is aborted.

    `found`: what is stored; None if the transactional id is new. `asked`: the identity that the producer wants to keep
    (KIP-360), or NO_PRODUCER. `new_producer_id` is an id that was never used; it is used if there is none yet, or if
    the epochs of the present one are used up.
    """
    if asked.epoch > EPOCH_MAX:
        return TransactionStep(TransactionVerdict.USED_UP)
    if found is None:
        producer = ProducerEpoch(new_producer_id, 0)
        after = Transaction(
            transactional_id=transactional_id, producer=producer, state=TransactionState.EMPTY, timeout_ms=timeout_ms
        )
        return TransactionStep(TransactionVerdict.DONE, after=after, producer=producer)
    if asked not in (NO_PRODUCER, found.producer):
        is_repeated = asked == found.previous and found.state is not TransactionState.ONGOING
        if is_repeated:  # the answer to an earlier request was lost
            return TransactionStep(TransactionVerdict.DONE, producer=found.producer)
        return TransactionStep(TransactionVerdict.FENCED)
    producer = _next(found.producer, new_producer_id)
    after = replace(_closed(found, TransactionState.EMPTY), producer=producer, previous=asked, timeout_ms=timeout_ms)
    return TransactionStep(TransactionVerdict.DONE, after=after, end=_fencing_end(found), producer=producer)


def add(found: Transaction | None, asked: ProducerEpoch, keys: Set[int], groups: Set[str]) -> TransactionStep:
    """AddPartitionsToTxn, AddOffsetsToTxn, and the implicit adding by Produce and TxnOffsetCommit (KIP-890).

    The first of them begins the transaction.
    """
    if found is None:
        return TransactionStep(TransactionVerdict.UNKNOWN_PRODUCER)
    if (refused := _refusal(found, asked)) is not None:
        return TransactionStep(refused)
    if found.state is TransactionState.ONGOING and keys <= found.partition_keys and groups <= found.groups:
        return TransactionStep(TransactionVerdict.DONE, producer=found.producer)
    after = replace(
        found,
        state=TransactionState.ONGOING,
        partition_keys=found.partition_keys | keys,
        groups=found.groups | groups,
    )
    return TransactionStep(TransactionVerdict.DONE, after, producer=found.producer)


def end(
    found: Transaction | None, asked: ProducerEpoch, *, commits: bool, bumps: bool, new_producer_id: int
) -> TransactionStep:
    """EndTxn. With `bumps` (KIP-890, version 5 of EndTxn) the producer continues with another epoch.

    Then an abort is also taken without an open transaction: none of its requests may have arrived.
    """
    if found is None:
        return TransactionStep(TransactionVerdict.UNKNOWN_PRODUCER)
    if asked.epoch > EPOCH_MAX:
        return TransactionStep(TransactionVerdict.USED_UP)
    outcome = _OUTCOMES[commits]
    if bumps and asked == found.previous and found.state in _OUTCOMES.values():
        return _repeated(found, outcome)
    if (refused := _refusal(found, asked)) is not None:
        return TransactionStep(refused)
    is_open = found.state is TransactionState.ONGOING
    if not bumps:
        if not is_open:
            return _repeated(found, outcome)
        return TransactionStep(
            TransactionVerdict.DONE,
            replace(_closed(found, outcome), previous=NO_PRODUCER),
            TransactionEnd(commits, found.producer.epoch),
            found.producer,
        )
    if commits and not is_open:
        return TransactionStep(TransactionVerdict.INVALID_STATE)
    producer = _next(found.producer, new_producer_id)
    after = replace(_closed(found, outcome), producer=producer, previous=found.producer)
    return TransactionStep(
        TransactionVerdict.DONE,
        after,
        TransactionEnd(commits, _fencing_epoch(found)) if is_open else None,
        producer,
    )


def time_out(found: Transaction | None, now_ms: int) -> TransactionStep:
    """Abort a transaction that is open for longer than its timeout, and fence its producer."""
    if found is None or found.state is not TransactionState.ONGOING or now_ms - found.begun_ms < found.timeout_ms:
        return TransactionStep(TransactionVerdict.INVALID_STATE)
    return _fenced(found)


def abort(found: Transaction | None, asked: ProducerEpoch) -> TransactionStep:
    """Abort the open transaction of this producer without asking it, and fence it."""
    if found is None:
        return TransactionStep(TransactionVerdict.UNKNOWN_PRODUCER)
    if (refused := _refusal(found, asked)) is not None:
        return TransactionStep(refused)
    if found.state is not TransactionState.ONGOING:
        return TransactionStep(TransactionVerdict.INVALID_STATE)
    return _fenced(found)


def _fenced(found: Transaction) -> TransactionStep:
    fencing = ProducerEpoch(found.producer.producer_id, _fencing_epoch(found))
    after = replace(_closed(found, TransactionState.COMPLETE_ABORT), producer=fencing, previous=NO_PRODUCER)
    return TransactionStep(TransactionVerdict.DONE, after, _fencing_end(found), fencing)


def _refusal(found: Transaction, asked: ProducerEpoch) -> TransactionVerdict | None:
    if asked.epoch > EPOCH_MAX:
        return TransactionVerdict.USED_UP
    if asked.producer_id != found.producer.producer_id:
        return TransactionVerdict.UNKNOWN_PRODUCER
    return None if asked.epoch == found.producer.epoch else TransactionVerdict.FENCED


def _repeated(found: Transaction, outcome: TransactionState) -> TransactionStep:
    """The answer to a request for an end that has happened, or cannot happen any more."""
    if found.state is outcome:
        return TransactionStep(TransactionVerdict.DONE, producer=found.producer)
    return TransactionStep(TransactionVerdict.INVALID_STATE)


def _closed(found: Transaction, state: TransactionState) -> Transaction:
    return replace(found, state=state, partition_keys=frozenset(), groups=frozenset())


def _fencing_end(found: Transaction) -> TransactionEnd | None:
    """The end of an open transaction that its producer did not ask for."""
    if found.state is not TransactionState.ONGOING:
        return None
    return TransactionEnd(commits=False, marker_epoch=_fencing_epoch(found))


def _fencing_epoch(found: Transaction) -> int:
    """The epoch that ends the present one: a smallint for every row."""
    return min(found.producer.epoch, EPOCH_MAX) + 1


def _next(producer: ProducerEpoch, new_producer_id: int) -> ProducerEpoch:
    if producer.epoch >= EPOCH_MAX:
        return ProducerEpoch(new_producer_id, 0)
    return ProducerEpoch(producer.producer_id, producer.epoch + 1)


PREFIX = "metastore/transactions/"


class BatchOwner(NamedTuple):
    """What the header of a transactional batch says of its producer."""

    producer_id: int
    epoch: int
    sequence: int


class PartitionOutcomes:
    """How transactions ended in one partition."""

    def __init__(self, outcomes: Iterable[TransactionOutcome] = ()) -> None:
        self.outcomes = sorted(set(outcomes), key=lambda one: (one.marker_offset, one))
        """By offset of the marker."""
        self._of: dict[tuple[int, int], list[TransactionOutcome]] = defaultdict(list)
        for one in self.outcomes:
            self._of[one.producer_id, one.epoch].append(one)

    def committed(self, owner: BatchOwner) -> bool | None:
        """Return whether a batch of this owner was committed; None if that is not known."""
        ends = self._of.get((owner.producer_id, owner.epoch), [])
        if any(a.end_sequence >= b.end_sequence or a.marker_offset == b.marker_offset for a, b in pairwise(ends)):
            return None  # another life ended it otherwise, or sequences began again at 0
        return next((one.commits for one in ends if owner.sequence < one.end_sequence), None)


async def list_outcomes(store: ObjectStore) -> list[RecordedObject]:
    """Return the objects that no later life took over."""
    return await list_in_force(store, PREFIX)


async def read_outcomes(store: ObjectStore, key: str) -> list[TransactionOutcome]:
    """Return what one object says. CorruptError if it is damaged."""
    return await read_entries(store, key, TransactionOutcome)
