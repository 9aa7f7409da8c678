"""Answers the requests of Kafka's tools about transactions.

ListTransactions (key 66, versions 0-2), DescribeTransactions (65, version 0), WriteTxnMarkers (27, versions 1-2).

Place: asked of every agent, and of the coordinator that FindCoordinator names. WriteTxnMarkers is, in Kafka, what a
coordinator asks of the leaders of partitions; here only `kafka-transactions.sh abort` asks, to end a transaction
that hangs.
Invariant: a tool that asks every agent gets each transactional id once: from the agent that coordinates it, or from
the one address that all agents share. Any agent describes any transaction.
A transaction ends as a whole: an abort that names one of its partitions aborts it in all of them, and fences its
producer. Nothing can be committed this way: only the producer knows that it is complete.
Source: KIP-664, KIP-994 (duration), KIP-1152 (pattern).
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import re2
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import TopicData
from kio.schema.describe_transactions.v0.response import TransactionState as DescribedTransaction
from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.list_transactions.v2.response import TransactionState as ListedTransaction
from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
)

from headrace.agent.access.authorization.access import FULL_ACCESS, Access
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import DENIED_UNITS
from headrace.agent.cluster.partition_names import RequestedPartition, Resolved, resolve
from headrace.agent.cluster.routing import Routes, transaction_coordinator
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.client_texts import storable
from headrace.agent.limits.work_slices import ELEMENT_UNITS, TOPIC_UNITS, WorkSlices
from headrace.config.patterns import compile_pattern
from headrace.metastore.api.transactions import ProducerEpoch, Transaction, TransactionApi, TransactionState
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.errors import transaction_error, transaction_failure
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import UNIX_EPOCH, Schema, decode, reply
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

STATE_NAMES = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
}
DENIED = int(ErrorCode.transactional_id_authorization_failed)
_KAFKAS_OTHERS = frozenset({"PrepareCommit", "PrepareAbort", "Dead", "PrepareEpochFence"})
"""Other states of Kafka's coordinator; no transaction is in one of them here."""


class ListTransactions:
    """List transactions by state, producer or age."""

    def __init__(
        self,
        cluster: ClusterView,
        transactions: TransactionApi,
        now_ms: Callable[[], int],
        shared: SharedAddress | None,
    ) -> None:
        """`now_ms`: the database's clock."""
        self._cluster = cluster
        self._transactions = transactions
        self._now_ms = now_ms
        self._shared = shared

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, ListTransactionsRequest)
        known = {*STATE_NAMES.values(), *_KAFKAS_OTHERS}
        unknown = tuple(name for name in entity.state_filters if name not in known)
        slices = WorkSlices()
        code, found = await self._find(request, entity, slices)

        def shown(each: Transaction) -> ListedTransaction:
            return schema.make(
                ListedTransaction,
                transactional_id=each.transactional_id,
                producer_id=each.producer.producer_id,
                transaction_state=STATE_NAMES[each.state],
            )

        states = await slices.each(shown, found)
        return reply(
            request,
            schema.response(error_code=code, unknown_state_filters=unknown, transaction_states=states),
        )

    async def _find(
        self, request: Request, entity: ListTransactionsRequest, slices: WorkSlices
    ) -> tuple[ErrorCode, list[Transaction]]:
        """Those that pass the request's filters, and are this agent's to list."""
        try:
            pattern = compile_pattern(getattr(entity, "transactional_id_pattern", None) or "")
        except ValueError:
            return ErrorCode.invalid_regular_expression, []
        try:
            now_ms = self._now_ms() if getattr(entity, "duration_filter", -1) >= 0 else 0
            stored = await self._transactions.find_transactions()
        except HeadraceError as error:
            logger.warning("cannot list transactions: error=%s", error)
            return ErrorCode(transaction_failure(error)), []
        routes = self._cluster.routes
        is_one = virtual_node(self._shared, request.connection.listener) is not None
        listed = []
        for each in stored:
            passes = _passes(each, entity, pattern, now_ms)
            await slices.did(ELEMENT_UNITS + (0 if is_one or not passes else len(routes.live_agents)))
            if passes and (is_one or self._is_listed_here(routes, each)):
                listed.append(each)
        return ErrorCode.none, listed

    def _is_listed_here(self, routes: Routes, found: Transaction) -> bool:
        agent = transaction_coordinator(routes, found.transactional_id)
        return agent is None or agent.node_id == self._cluster.node_id


def _passes(found: Transaction, entity: ListTransactionsRequest, pattern: re2._Regexp, now_ms: int) -> bool:
    """The filters of a request; an empty one lets all pass. A duration asks for open transactions only."""
    duration_ms = getattr(entity, "duration_filter", -1)
    return (
        (not entity.state_filters or STATE_NAMES[found.state] in entity.state_filters)
        and (not entity.producer_id_filters or found.producer.producer_id in entity.producer_id_filters)
        and (duration_ms < 0 or (found.begun_ms >= 0 and now_ms - found.begun_ms > duration_ms))
        and (not pattern.pattern or pattern.fullmatch(found.transactional_id) is not None)
    )


class DescribeTransactions:
    """Describe transactions by transactional id."""

    def __init__(self, cluster: ClusterView, transactions: TransactionApi, authorizer: Authorizer | None) -> None:
        """`authorizer`: None if ACLs are not enforced."""
        self._cluster = cluster
        self._transactions = transactions
        self._authorizer = authorizer

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DescribeTransactionsRequest)
        failed = int(ErrorCode.transactional_id_not_found)
        found: dict[str, Transaction] = {}
        asked = list(dict.fromkeys(entity.transactional_ids))
        slices = WorkSlices()
        denied = await self._denied(request, asked, slices)
        try:
            stored = [name for name in asked if name not in denied and storable(name)]
            found = {each.transactional_id: each for each in await self._transactions.find_transactions(stored)}
        except HeadraceError as error:
            logger.warning("cannot describe transactions: error=%s", error)
            failed = transaction_failure(error)
        states, image = list[DescribedTransaction](), self._cluster.image
        access = FULL_ACCESS if self._authorizer is None else self._authorizer.access(request.connection)
        for name in asked:
            one = found.get(name)
            topics = await _by_topic(image, access, () if one is None else one.partition_keys, slices)
            states.append(_described(schema, name, one, topics, DENIED if name in denied else failed))
            await slices.did(TOPIC_UNITS)
        return reply(request, schema.response(transaction_states=tuple(states)))

    async def _denied(self, request: Request, asked: Sequence[str], slices: WorkSlices) -> set[str]:
        """Return the ids that the client may not describe."""
        denied = set[str]()
        if self._authorizer is None:
            return denied
        for name in asked:
            if not self._authorizer.require(request, AclOperation.DESCRIBE, AclResource.TRANSACTIONAL_ID, name):
                denied.add(name)
                await slices.did(DENIED_UNITS)
            await slices.did(TOPIC_UNITS)
        return denied


def _described(
    schema: Schema, name: str, found: Transaction | None, topics: Mapping[str, Sequence[int]], code_if_none: int
) -> DescribedTransaction:
    """Return the answer's part about one transactional id. `topics`: the partitions of its transaction."""
    if found is None:
        code = ErrorCode(code_if_none) if name else ErrorCode.invalid_request
        return schema.make(
            DescribedTransaction,
            error_code=code,
            transactional_id=name,
            transaction_state="",
            transaction_timeout=datetime.timedelta(0),
            transaction_start_time=UNIX_EPOCH,
            producer_id=-1,
            producer_epoch=-1,
            topics=(),
        )
    return schema.make(
        DescribedTransaction,
        error_code=ErrorCode.none,
        transactional_id=name,
        transaction_state=STATE_NAMES[found.state],
        transaction_timeout=datetime.timedelta(milliseconds=found.timeout_ms),
        transaction_start_time=UNIX_EPOCH + datetime.timedelta(milliseconds=found.begun_ms),
        producer_id=found.producer.producer_id,
        producer_epoch=found.producer.epoch,
        topics=tuple(
            schema.make(TopicData, topic=topic, partitions=tuple(indexes)) for topic, indexes in topics.items()
        ),
    )


async def _by_topic(
    image: MetadataImage, access: Access, keys: Collection[int], slices: WorkSlices
) -> dict[str, list[int]]:
    """Return partitions by topic, without those of deleted topics, and of topics that the client may not
    describe.
    """
    by_topic: dict[str, list[int]] = {}
    for key in sorted(keys):
        number, index = split_partition_key(key)
        topic = image.topics_by_number.get(number)
        if topic is not None and access.allows(AclOperation.DESCRIBE, AclResource.TOPIC, topic.name):
            by_topic.setdefault(topic.name, []).append(index)
        await slices.did(1 if access.is_full else TOPIC_UNITS)
    return by_topic


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
