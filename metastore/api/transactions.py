"""Transactions: what a coordinator asks for its producers (KIP-98), what is stored of a transactional id.

Place: under agent/transactions; the rules are metastore/transactions.py.
Invariant of what is stored: of all (producer id, epoch) pairs that a transactional id ever had, at most one may
write: `producer`.
No pair is handed out twice.
Invariant: each call decides on the stored row and writes the result in one statement, if the row is still the same;
so any agent may coordinate any transactional id. A call with an unknown outcome can be repeated: what happened is in
the row.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headrace.metastore.api.groups import CommittedOffset

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


class TransactionAnswer(NamedTuple):
    """`producer`: how the client continues, if the verdict is DONE."""

    verdict: TransactionVerdict
    producer: ProducerEpoch = NO_PRODUCER


class PendingOffsetsAnswer(NamedTuple):
    """`stored`: by offset of the call, whether its partition is there; empty unless the verdict is DONE."""

    verdict: TransactionVerdict
    stored: list[bool]


class LateTransaction(NamedTuple):
    """A transaction that is open for longer than its timeout, as of `now_ms` of the database's clock."""

    transactional_id: str
    now_ms: int


class OpenTransactions(NamedTuple):
    """How many there are, for how long the oldest is open, how many are late, and the oldest of these."""

    open: int = 0
    oldest_ms: int = 0
    late_count: int = 0
    late: Sequence[LateTransaction] = ()


class TransactionApi(Protocol):
    """Reading and changing what is stored of transactional ids.

    UnavailableError from a changing call if others changed the row at each of many attempts: nothing happened.
    """

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, asked: ProducerEpoch, new_producer_id: int
    ) -> TransactionAnswer:
        """policy.init_producer. `new_producer_id` is an id that nothing else uses, whether it is taken or not."""

    async def add_to_transaction(
        self, transactional_id: str, asked: ProducerEpoch, keys: Set[int] = frozenset(), groups: Set[str] = frozenset()
    ) -> TransactionAnswer:
        """policy.add. NotFoundError if one of the partitions `keys` was deleted: nothing happened. A partition that is
        deleted later is skipped when the transaction ends.
        """

    async def add_pending_offsets(
        self,
        transactional_id: str,
        asked: ProducerEpoch,
        group_id: str,
        coordinator_epoch: int,
        offsets: Sequence[CommittedOffset],
        *,
        adds_group: bool,
    ) -> PendingOffsetsAnswer:
        """Positions that the open transaction commits. FencedError if the group has another coordinator.

        `adds_group`: the group becomes part of the transaction, which may begin with it (KIP-890). Otherwise it has to
        be part of it: INVALID_STATE.
        """

    async def end_transaction(
        self, transactional_id: str, asked: ProducerEpoch, *, commits: bool, bumps: bool, new_producer_id: int
    ) -> TransactionAnswer:
        """policy.end."""

    async def time_out_transaction(self, late: LateTransaction) -> bool:
        """Abort it and fence its producer, if it is still late. Whether that happened."""

    async def abort_transaction(self, transactional_id: str, asked: ProducerEpoch) -> TransactionVerdict:
        """policy.abort."""

    async def open_transactions(self, most: int) -> OpenTransactions:
        """Open the transactions with up to `most` late ones, the oldest first."""

    async def expire_transactional_ids(self, expiration_ms: int, most: int) -> int:
        """Forget up to `most` ids that were unused for so long, without an open transaction; how many."""

    async def find_transactions(self, transactional_ids: Sequence[str] | None = None) -> list[Transaction]:
        """Those that are known of these ids, or all, by id."""
