"""What a request of a transactional producer changes: the state machine of a transactional id. Pure.

Place: above metastore/api and below metastore/postgres/transactions, which reads a row, has the decision made here,
and writes the result if the row is still of the same version, else asks again.
Invariant: a request of a fenced producer changes nothing. A transaction ends once; a repeated request gets the first
answer. A step with an `end` closes the transaction: markers, offsets and the new row are written in one statement.
No epoch is above EPOCH_MAX + 1, which fences the last epoch: no request may name it, so no transaction begins under
it.
Source: KIP-98; KIP-360 (a producer that keeps its id); KIP-890 (`bumps`: each end gives the producer another epoch).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from headrace.metastore.api.transactions import (
    EPOCH_MAX,
    NO_PRODUCER,
    ProducerEpoch,
    Transaction,
    TransactionState,
    TransactionVerdict,
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
