"""WriteTxnMarkers (key 27, versions 1-2): `kafka-transactions.sh abort`.

Place: in Kafka, what a coordinator asks of the leaders of partitions; here only a tool asks, to end a transaction that
hangs.
Invariant: a transaction ends as a whole: an abort that names one of its partitions aborts it in all of them, and fences
its producer. Nothing can be committed this way: only the producer knows that it is complete.
Source: KIP-664.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kio.schema.errors import ErrorCode
from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
)

from headrace.agent.cluster.partition_names import RequestedPartition, Resolved, resolve
from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.transactions import ProducerEpoch, TransactionApi
from headrace.protocol.errors import transaction_error, transaction_failure
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)


class WriteTxnMarkers:
    """Abort the transaction that Kafka's tools name."""

    def __init__(
        self, cluster: ClusterView, transactions: TransactionApi, on_ended: Callable[[], None] = lambda: None
    ) -> None:
        """`on_ended`: a transaction may have ended."""
        self._cluster = cluster
        self._transactions = transactions
        self._on_ended = on_ended

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, WriteTxnMarkersRequest)
        markers = tuple([await self._marker(schema, marker) for marker in entity.markers])
        self._on_ended()
        return reply(request, schema.response(markers=markers))

    async def _marker(self, schema: Schema, marker: WritableTxnMarker) -> WritableTxnMarkerResult:
        asked = [
            RequestedPartition(topic.name, index, -1) for topic in marker.topics for index in topic.partition_indexes
        ]
        resolved = await resolve(self._cluster, asked)
        code = await self._abort(marker, resolved)
        codes = iter([each.error or code for each in resolved])
        return schema.make(
            WritableTxnMarkerResult,
            producer_id=marker.producer_id,
            topics=tuple(
                schema.make(
                    WritableTxnMarkerTopicResult,
                    name=topic.name,
                    partitions=tuple(
                        schema.make(
                            WritableTxnMarkerPartitionResult,
                            partition_index=index,
                            error_code=ErrorCode(next(codes)),
                        )
                        for index in topic.partition_indexes
                    ),
                )
                for topic in marker.topics
            ),
        )

    async def _abort(self, marker: WritableTxnMarker, resolved: list[Resolved]) -> int:
        keys = {each.key for each in resolved if not each.error}
        producer = ProducerEpoch(marker.producer_id, marker.producer_epoch)
        if marker.transaction_result:
            return int(ErrorCode.invalid_request)
        try:
            for found in await self._transactions.find_transactions():
                if found.producer.producer_id == producer.producer_id and keys & found.partition_keys:
                    verdict = await self._transactions.abort_transaction(found.transactional_id, producer)
                    logger.warning(
                        "transaction aborted by a tool: transactional_id=%s verdict=%s",
                        found.transactional_id,
                        verdict.name,
                    )
                    return transaction_error(verdict, knows_fenced=False)
        except HeadraceError as error:
            logger.warning("cannot abort a transaction: producer_id=%d error=%s", marker.producer_id, error)
            return transaction_failure(error)
        return int(ErrorCode.invalid_txn_state)
