"""EndTxn (key 26, versions 0-5): commits or aborts the open transaction of a producer.

Place: after the last batch of the transaction was acknowledged.
Invariant: the transaction has ended in all its partitions and groups when this is answered, and consumers of this agent
see it at once. Version 5 gives the producer its epoch for the next transaction; the same request again, with the
epoch before, gets the same answer.
Source: KIP-98, KIP-890; decisions/0060.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry, Counter

from headrace.agent.limits.stored_ids import storable
from headrace.agent.transactions.producer_ids import ProducerIds
from headrace.metastore.api.transactions import (
    EPOCH_MAX,
    NO_PRODUCER,
    ProducerEpoch,
    TransactionApi,
    TransactionVerdict,
)
from headrace.protocol.errors import transaction_error, transaction_failure
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

FIRST_WITH_BUMP = 5
_FIRST_WITH_FENCED = 2


class EndTxn:
    """Commit or abort a transaction."""

    def __init__(
        self,
        transactions: TransactionApi,
        producer_ids: ProducerIds,
        on_ended: Callable[[], None] = lambda: None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        """`on_ended`: a transaction may have ended. `registry`: of the process's metrics; None without metrics."""
        self._transactions = transactions
        self._producer_ids = producer_ids
        self._on_ended = on_ended
        ended = Counter(
            "headrace_transactions_ended_total",
            "Ends of transactions that this agent confirmed, by outcome; a repeated request counts again",
            ["outcome"],
            registry=registry,
        )
        self._ended = {commits: ended.labels(outcome) for commits, outcome in ((True, "commit"), (False, "abort"))}

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, EndTxnRequest)
        producer = ProducerEpoch(entity.producer_id, entity.producer_epoch)
        given = NO_PRODUCER
        if not entity.transactional_id or not storable(entity.transactional_id):
            code = int(ErrorCode.invalid_request)
        else:
            code, given = await self._end(entity.transactional_id, producer, entity.committed, request.api_version)
        return reply(
            request,
            schema.response(
                error_code=ErrorCode(code),
                producer_id=given.producer_id,
                producer_epoch=given.epoch,
            ),
        )

    async def _end(
        self, transactional_id: str, producer: ProducerEpoch, commits: bool, version: int
    ) -> tuple[int, ProducerEpoch]:
        try:
            # a new id is needed only by the producer of the last epoch
            new_producer_id = await self._producer_ids.next() if producer.epoch >= EPOCH_MAX else -1
            answer = await self._transactions.end_transaction(
                transactional_id,
                producer,
                commits=commits,
                bumps=version >= FIRST_WITH_BUMP,
                new_producer_id=new_producer_id,
            )
        except HeadraceError as error:
            logger.warning("cannot end a transaction: transactional_id=%s error=%s", transactional_id, error)
            return transaction_failure(error), NO_PRODUCER
        finally:
            self._on_ended()
        if answer.verdict is TransactionVerdict.DONE:
            self._ended[commits].inc()
        return transaction_error(answer.verdict, knows_fenced=version >= _FIRST_WITH_FENCED), answer.producer
