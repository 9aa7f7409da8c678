"""Transactional batches on their way to the commit: what this agent can judge of them.

Place: asked by receive.py for each batch, and once for each producer.
Invariant: a producer id always belongs to the same transactional id. So the metastore is asked for it once, and a
client that may write one transactional id cannot write in the transaction of another. Everything that may change
(the epoch, whether a transaction is open, its partitions) is judged by the commit.
Source: KIP-98; KIP-890 (batches of Produce 12 and later begin the transaction and add the partition themselves).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from kio.schema.errors import ErrorCode

from headrace.agent.limits.client_memory import ClientMemory, text_bytes
from headrace.agent.produce.pending import Refusal, not_stored
from headrace.config.memory_budget import REMEMBERED_BYTES
from headrace.metastore.api.commit import BatchTransaction
from headrace.metastore.api.transactions import EPOCH_MAX, Transaction
from headrace.protocol.produce_codec import ProduceRequest
from headrace.storage.errors import HeadraceError
from headrace.storage.records.header import HEADER_BYTES, BatchHeader, read_header

log = logging.getLogger(__name__)

FIRST_IMPLICIT = 12
"""The version of Produce from which on batches add their partition to the transaction."""
NAMES_BYTES = REMEMBERED_BYTES["producer_names"]
"""Bytes for names of the producers that are remembered; one that was forgotten is looked up again."""
NO_TRANSACTIONS = Refusal(
    int(ErrorCode.invalid_txn_state), "transactions are not supported while transaction.version is 0"
)
"""INVALID_TXN_STATE: final in every client, and blames neither the user's rights nor the network."""
NO_NAME = Refusal(
    int(ErrorCode.transactional_id_authorization_failed), "transactional records without a transactional id"
)
NO_PRODUCER = Refusal(int(ErrorCode.invalid_record), "transactional records without a producer id")
USED_UP = Refusal(int(ErrorCode.invalid_producer_epoch), f"a producer has no epoch above {EPOCH_MAX}")
OTHER_NAME = Refusal(
    int(ErrorCode.invalid_producer_id_mapping), "the producer id is not, or not any more, that of the transactional id"
)

FindTransactions = Callable[[Sequence[str]], Awaitable[list[Transaction]]]
"""The same as TransactionApi.find_transactions."""


def judge_transactional(header: BatchHeader, transactional_id: str | None, *, is_offered: bool) -> Refusal | None:
    """Return why a transactional batch is refused for what it and its request say, if it is."""
    if not is_offered:
        return NO_TRANSACTIONS
    if transactional_id is None:
        return NO_NAME
    if header.producer_id < 0:
        return NO_PRODUCER
    return USED_UP if header.producer_epoch > EPOCH_MAX else None


def transaction_of(header: BatchHeader, api_version: int) -> BatchTransaction:
    """Return what the commit has to know of a batch that came with this version of Produce."""
    if not header.is_transactional:
        return BatchTransaction.NO_TRANSACTION
    return BatchTransaction.ANY_PARTITION if api_version >= FIRST_IMPLICIT else BatchTransaction.ADDED


class ProducerNames:
    """Map of producer ids to transactional ids, as far as this agent has looked."""

    def __init__(self, find: FindTransactions) -> None:
        self._find = find
        self._names: ClientMemory[int, str] = ClientMemory(NAMES_BYTES, lambda _, name: text_bytes(name))

    @property
    def in_use_bytes(self) -> int:
        """What is remembered."""
        return self._names.in_use_bytes

    def has_all(self, produce: ProduceRequest) -> bool:
        """Return whether all producers of the request's transactional batches are known to have its transactional
        id.
        """
        name = produce.transactional_id
        return name is None or all(self._names.get(each) == name for each in _producers(produce))

    async def look_up(self, transactional_id: str, producer_ids: Iterable[int]) -> Refusal | None:
        """Return why batches of these producers with this transactional id are refused, if they are."""
        unknown = [each for each in producer_ids if self._names.get(each) != transactional_id]
        if not unknown:
            return None
        try:
            found = await self._find([transactional_id])
        except HeadraceError as error:
            log.warning("cannot look up a transactional id: error=%s", error)
            return not_stored("the transactional id cannot be looked up now")
        owned = {each.producer.producer_id for each in found}
        for each in owned:
            self._names.put(each, transactional_id)
        return None if owned.issuperset(unknown) else OTHER_NAME


def _producers(produce: ProduceRequest) -> set[int]:
    """Return the producers of the transactional batches with a whole header, without judging them."""
    headers = (
        read_header(partition.records)
        for topic in produce.topics
        for partition in topic.partitions
        if partition.records and len(partition.records) >= HEADER_BYTES
    )
    return {header.producer_id for header in headers if header.is_transactional}
