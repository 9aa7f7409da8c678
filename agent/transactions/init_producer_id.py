"""InitProducerId (key 22, versions 0-5): the identity under which a producer writes.

Place: before a producer's first batch; the commit uses the ids as key of the producer state.
Invariant: without a transactional id a producer gets a new id with epoch 0, also if it asks to keep its id with a
higher epoch (KIP-360): a new id cannot conflict with the sequences of the old one. With one it keeps the id, and the
new epoch fences all that it had before; its open transaction is aborted.
Source: KIP-98, KIP-360.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.client_rows import PRODUCER_STATES, TRANSACTIONAL_IDS, RowLimits
from headrace.agent.limits.refusal_log import OnRefused, unheard
from headrace.agent.transactions.producer_ids import ProducerIds
from headrace.metastore.api.transactions import NO_PRODUCER, ProducerEpoch, TransactionApi
from headrace.protocol.errors import transaction_error, transaction_failure
from headrace.protocol.request import GivenProducer, Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.errors import HeadraceError, OutcomeUnknownError, UnavailableError

logger = logging.getLogger(__name__)

NO_TRANSACTIONS = "transactions are not supported while transaction.version is 0: kafka-features.sh upgrade"
_FIRST_WITH_FENCED = 4

Given = tuple[int, ProducerEpoch]
"""An error code, and the producer's identity if it is none."""
TRANSACTIONAL_ID_BYTES_MAX = 2_000
"""Most bytes of a transactional id in UTF-8. Kafka takes 32,767; a key of an index in Postgres is shorter."""


class InitProducerId:
    """Assign a producer id, and a new epoch to a transactional id."""

    def __init__(
        self,
        producer_ids: ProducerIds,
        cluster: ClusterView,
        transactions: TransactionApi,
        timeout_max_ms: Callable[[], int],
        on_refused: OnRefused = unheard,
        on_ended: Callable[[], None] = lambda: None,
        rows: RowLimits | None = None,
    ) -> None:
        """`on_ended`: a transaction may have ended. `rows`: limits on what is stored; None: there are none."""
        self._rows = rows
        self._producer_ids = producer_ids
        self._cluster = cluster
        self._transactions = transactions
        self._timeout_max_ms = timeout_max_ms
        self._on_refused = on_refused
        self._on_ended = on_ended

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, InitProducerIdRequest)
        asked = ProducerEpoch(getattr(entity, "producer_id", -1), getattr(entity, "producer_epoch", -1))
        if (asked.producer_id == -1) != (asked.epoch == -1):
            code, producer = int(ErrorCode.invalid_request), NO_PRODUCER  # as in Kafka
        elif entity.transactional_id is None:
            code, producer = await self._idempotent(request)
        else:
            code, producer = await self._transactional(
                request, entity.transactional_id, _milliseconds(entity.transaction_timeout), asked
            )
        request.connection.origin = None
        request.connection.given = GivenProducer((producer.producer_id, producer.epoch), self._cluster.image.offset)
        response = schema.response(
            error_code=ErrorCode(code),
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
        )
        return reply(request, response)

    async def _idempotent(self, request: Request) -> Given:
        if await self._is_full(PRODUCER_STATES):
            return self._full(request, PRODUCER_STATES)
        try:
            return int(ErrorCode.none), ProducerEpoch(await self._producer_ids.next(), 0)
        except (UnavailableError, OutcomeUnknownError) as error:
            # As Kafka answers while it waits for a block; clients retry.
            logger.warning("cannot allocate producer ids: error=%s", error)
            return int(ErrorCode.coordinator_load_in_progress), NO_PRODUCER

    async def _transactional(
        self, request: Request, transactional_id: str, timeout_ms: int, asked: ProducerEpoch
    ) -> Given:
        if not self._cluster.image.transaction_version:
            # The only code that every client library treats as final at once; others are retried.
            self._on_refused(request, NO_TRANSACTIONS)
            return int(ErrorCode.transactional_id_authorization_failed), NO_PRODUCER
        if not is_legal_transactional_id(transactional_id):
            return int(ErrorCode.invalid_request), NO_PRODUCER
        if not 0 < timeout_ms <= self._timeout_max_ms():
            return int(ErrorCode.invalid_transaction_timeout), NO_PRODUCER
        try:
            for limit in (TRANSACTIONAL_IDS, PRODUCER_STATES):
                if await self._is_full(limit) and not await self._is_stored(transactional_id):
                    return self._full(request, limit)
            answer = await self._transactions.init_producer(
                transactional_id, timeout_ms, asked, await self._producer_ids.next()
            )
        except HeadraceError as error:
            logger.warning("cannot initialise a producer: transactional_id=%s error=%s", transactional_id, error)
            return transaction_failure(error), NO_PRODUCER
        self._on_ended()
        knows_fenced = request.api_version >= _FIRST_WITH_FENCED
        return transaction_error(answer.verdict, knows_fenced=knows_fenced), answer.producer

    async def _is_full(self, limit: str) -> bool:
        return self._rows is not None and not await self._rows.has_room(limit)

    async def _is_stored(self, transactional_id: str) -> bool:
        return bool(await self._transactions.find_transactions([transactional_id]))

    def _full(self, request: Request, limit: str) -> Given:
        """Refuse a new producer; one with a stored transactional id never is."""
        assert self._rows is not None
        self._rows.refused(limit)
        self._on_refused(request, f"the cluster has its most producers: limit={limit}")
        return int(ErrorCode.policy_violation), NO_PRODUCER


def _milliseconds(timeout: datetime.timedelta) -> int:
    return timeout // datetime.timedelta(milliseconds=1)


def is_legal_transactional_id(transactional_id: str) -> bool:
    """Not empty, not too long, and without NUL, which Postgres does not store."""
    return 0 < len(transactional_id.encode()) <= TRANSACTIONAL_ID_BYTES_MAX and "\0" not in transactional_id
