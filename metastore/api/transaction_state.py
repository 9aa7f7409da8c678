"""What is stored of a transactional id, and the answers to its producer.

Place: read and written by metastore/postgres/transactions; decided on by policy.py.
Invariant: of all (producer id, epoch) pairs that a transactional id ever had, at most one may write: `producer`.
No pair is handed out twice.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

EPOCH_MAX = 32_766
"""The highest epoch that a producer gets; as Kafka, one higher is used to fence it only."""


class TransactionState(enum.IntEnum):
    """Kafka's numbers. There is no PrepareCommit and no PrepareAbort: a transaction ends in one statement."""

    EMPTY = 0
    ONGOING = 1
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


class ProducerEpoch(NamedTuple):
    """The identity under which a producer writes."""

    producer_id: int
    epoch: int


NO_PRODUCER = ProducerEpoch(-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transactional id. Times in ms on the database's clock, -1 for none."""

    transactional_id: str
    producer: ProducerEpoch
    state: TransactionState
    timeout_ms: int
    previous: ProducerEpoch = NO_PRODUCER
    """What a repeated request names, if the last one changed `producer`: it gets the answer of the first."""
    partition_keys: frozenset[int] = frozenset()
    """The partitions of the open transaction."""
    groups: frozenset[str] = frozenset()
    """Consumer groups with offsets in the open transaction."""
    begun_ms: int = -1
    """The time when the open transaction began."""
    changed_ms: int = -1
    version: int = 0
    """Rises with each change of the row; 0 before the first."""


class TransactionVerdict(enum.Enum):
    """The answer to a request of a transactional producer."""

    DONE = enum.auto()
    UNKNOWN_PRODUCER = enum.auto()
    """The transactional id is not known, or has another producer id: INVALID_PRODUCER_ID_MAPPING."""
    FENCED = enum.auto()
    """Another instance has taken over, or the transaction timed out: PRODUCER_FENCED."""
    INVALID_STATE = enum.auto()
    """There is no transaction that the request could end, or it ended the other way: INVALID_TXN_STATE."""
    USED_UP = enum.auto()
    """The request names an epoch that no producer gets, above EPOCH_MAX: INVALID_PRODUCER_EPOCH."""
