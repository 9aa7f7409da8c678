"""AddPartitionsToTxn (key 24, versions 0-5) and AddOffsetsToTxn (key 25, versions 0-4).

Place: before a producer's first batch for a partition, and before its first offsets of a group. Producers of
transaction.version 2 send neither: Produce and TxnOffsetCommit add what they write to (KIP-890).
Invariant: all partitions of a transaction are added, or none. Versions 4 and 5 of AddPartitionsToTxn are requests of
Kafka's brokers: several transactions at once, some of which are only looked at.
Source: KIP-98, KIP-890; Kafka 4.1, KafkaApis.handleAddPartitionsToTxnRequest.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kio.schema.add_partitions_to_txn.v5.response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.partition_names import RequestedPartition, resolve
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.stored_ids import is_long, may_be_stored, storable
from headrace.metastore.api.transactions import ProducerEpoch, TransactionApi, TransactionState, TransactionVerdict
from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.protocol.errors import transaction_error, transaction_failure
from headrace.protocol.internal_topics import INTERNAL_TOPICS
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

FIRST_OF_BROKERS = 4
"""The version of AddPartitionsToTxn from which on only Kafka's brokers send it."""
_FIRST_WITH_FENCED = 2

PartitionCodes = list[list[int]]
"""Partition codes by topic and partition, in order of the request."""


class AddPartitionsToTxn:
    """Add partitions to a transaction."""

    def __init__(self, cluster: ClusterView, transactions: TransactionApi) -> None:
        self._cluster = cluster
        self._transactions = transactions

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        version = request.api_version
        if version < FIRST_OF_BROKERS:
            producer = ProducerEpoch(entity.v3_and_below_producer_id, entity.v3_and_below_producer_epoch)
            topics = entity.v3_and_below_topics
            codes = await self._add(entity.v3_and_below_transactional_id, producer, topics, version)
            return reply(
                request,
                schema.response(results_by_topic_v3_and_below=_results(schema, topics, codes)),
            )
        results = [
            schema.make(
                AddPartitionsToTxnResult,
                transactional_id=each.transactional_id,
                topic_results=_results(schema, each.topics, await self._of_broker(each, version)),
            )
            for each in entity.transactions
        ]
        return reply(
            request,
            schema.response(error_code=ErrorCode.none, results_by_transaction=tuple(results)),
        )

    async def _of_broker(self, asked: AddPartitionsToTxnTransaction, version: int) -> PartitionCodes:
        producer = ProducerEpoch(asked.producer_id, asked.producer_epoch)
        if not asked.verify_only:
            return await self._add(asked.transactional_id, producer, asked.topics, version)
        try:
            found = next(iter(await self._transactions.find_transactions([asked.transactional_id])), None)
        except HeadraceError as error:
            return _same(asked.topics, transaction_failure(error))
        if found is None or found.producer.producer_id != producer.producer_id:
            verdict = TransactionVerdict.UNKNOWN_PRODUCER
        elif found.producer != producer:
            verdict = TransactionVerdict.FENCED
        else:
            keys, _ = await self._keys(asked.topics)
            is_added = found.state is TransactionState.ONGOING and set(keys) <= found.partition_keys
            verdict = TransactionVerdict.DONE if is_added else TransactionVerdict.INVALID_STATE
        return _same(asked.topics, transaction_error(verdict, knows_fenced=True, knows_abortable=True))

    async def _add(
        self, transactional_id: str, producer: ProducerEpoch, topics: Sequence[AddPartitionsToTxnTopic], version: int
    ) -> PartitionCodes:
        if not transactional_id or not storable(transactional_id):
            return _same(topics, int(ErrorCode.invalid_request))
        keys, codes = await self._keys(topics)
        if any(code for each in codes for code in each):
            left_out = int(ErrorCode.operation_not_attempted)
            return [[code or left_out for code in each] for each in codes]
        try:
            answer = await self._transactions.add_to_transaction(transactional_id, producer, frozenset(keys))
        except HeadraceError as error:
            logger.warning("cannot add partitions: transactional_id=%s error=%s", transactional_id, error)
            return _same(topics, transaction_failure(error))
        return _same(topics, transaction_error(answer.verdict, knows_fenced=version >= _FIRST_WITH_FENCED))

    async def _keys(self, topics: Sequence[AddPartitionsToTxnTopic]) -> tuple[list[int], PartitionCodes]:
        """The keys of the partitions that exist, and a code for each."""
        asked = [RequestedPartition(topic.name, index, -1) for topic in topics for index in topic.partitions]
        found = iter(await resolve(self._cluster, asked))
        keys: list[int] = []
        codes: PartitionCodes = []
        for topic in topics:
            is_readable_only = rendered_topic(topic.name) is not None or topic.name in INTERNAL_TOPICS
            resolved = [next(found) for _ in topic.partitions]
            keys += [each.key for each in resolved if not each.error]
            codes.append(
                [int(ErrorCode.topic_authorization_failed if is_readable_only else each.error) for each in resolved]
            )
        return keys, codes


StoredGroups = Callable[[Sequence[str]], Awaitable[Sequence[object]]]


async def _none_stored(group_ids: Sequence[str]) -> Sequence[object]:
    return ()


class AddOffsetsToTxn:
    """Add a group to a transaction."""

    def __init__(self, transactions: TransactionApi, groups: StoredGroups = _none_stored) -> None:
        """`groups`: of these ids, those that are stored."""
        self._transactions = transactions
        self._groups = groups

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, AddOffsetsToTxnRequest)
        producer = ProducerEpoch(entity.producer_id, entity.producer_epoch)
        name = entity.transactional_id
        if not (name and storable(name) and entity.group_id and storable(entity.group_id)):
            code = int(ErrorCode.invalid_request if entity.group_id else ErrorCode.invalid_group_id)
        else:
            try:
                if is_long(entity.group_id) and not await self._is_stored(entity.group_id):
                    return reply(request, schema.response(error_code=ErrorCode.invalid_group_id))
                answer = await self._transactions.add_to_transaction(name, producer, groups={entity.group_id})
                code = transaction_error(answer.verdict, knows_fenced=request.api_version >= _FIRST_WITH_FENCED)
            except HeadraceError as error:
                logger.warning("cannot add a group: transactional_id=%s error=%s", name, error)
                code = transaction_failure(error)
        return reply(request, schema.response(error_code=ErrorCode(code)))

    async def _is_stored(self, group_id: str) -> bool:
        return may_be_stored(group_id) and bool(await self._groups([group_id]))


def _same(topics: Sequence[AddPartitionsToTxnTopic], code: int) -> PartitionCodes:
    return [[code for _ in topic.partitions] for topic in topics]


def _results(
    schema: Schema, topics: Sequence[AddPartitionsToTxnTopic], codes: PartitionCodes
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    return tuple(
        schema.make(
            AddPartitionsToTxnTopicResult,
            name=topic.name,
            results_by_partition=tuple(
                schema.make(
                    AddPartitionsToTxnPartitionResult, partition_index=index, partition_error_code=ErrorCode(code)
                )
                for index, code in zip(topic.partitions, own, strict=True)
            ),
        )
        for topic, own in zip(topics, codes, strict=True)
    )
