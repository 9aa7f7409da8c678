"""The requests of producers about their transactions: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn.

Place: InitProducerId (key 22, versions 0-5) comes before a producer's first batch, AddPartitionsToTxn (24, 0-5)
before its first one for a partition, AddOffsetsToTxn (25, 0-4) before its first offsets of a group: Produce and
TxnOffsetCommit of transaction.version 2 add these themselves. EndTxn (26, 0-5) comes after the last batch was
acknowledged.
Invariant: without a transactional id a producer gets a new id with epoch 0, also if it asks to keep its id
(KIP-360): a new id cannot conflict with the sequences of the old one. With one it keeps the id, and the new epoch
fences all that it had before; its open transaction is aborted. All partitions of a transaction are added, or none.
When EndTxn is answered, the transaction has ended everywhere, and consumers of this agent see it. Repeated with the
epoch before, EndTxn gets the same answer. Versions 4 and 5 of AddPartitionsToTxn are of Kafka's brokers: several
transactions, some only looked at.
Source: KIP-98, KIP-360, KIP-890; decisions/0060; Kafka 4.1, KafkaApis.handleAddPartitionsToTxnRequest.
"""

from __future__ import annotations

import datetime
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
from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from prometheus_client import CollectorRegistry, Counter

from headrace.agent.cluster.partition_names import RequestedPartition, resolve
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.client_rows import PRODUCER_STATES, TRANSACTIONAL_IDS, RowLimits
from headrace.agent.limits.client_texts import is_long, may_be_stored, storable
from headrace.agent.limits.refusal_log import OnRefused, unheard
from headrace.agent.transactions.producer_ids import ProducerIds
from headrace.metastore.api.transactions import (
    EPOCH_MAX,
    NO_PRODUCER,
    ProducerEpoch,
    TransactionApi,
    TransactionState,
    TransactionVerdict,
)
from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.protocol.errors import transaction_error, transaction_failure
from headrace.protocol.internal_topics import INTERNAL_TOPICS
from headrace.protocol.request import GivenProducer, Request, Response
from headrace.protocol.typed import Schema, decode, reply
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


FIRST_OF_BROKERS = 4
"""The version of AddPartitionsToTxn from which on only Kafka's brokers send it."""
_FIRST_ADD_WITH_FENCED = 2

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
        return _same(topics, transaction_error(answer.verdict, knows_fenced=version >= _FIRST_ADD_WITH_FENCED))

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
            refusal = int(ErrorCode.topic_authorization_failed) if is_readable_only else self._refusal(topic.name)
            codes.append([refusal or each.error for each in resolved])
        return keys, codes

    def _refusal(self, topic: str) -> int:
        """POLICY_VIOLATION for a copy that a link keeps, 0 for all other topics: the answer has no message."""
        return int(ErrorCode.policy_violation) if self._cluster.image.link_of(topic) else int(ErrorCode.none)


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
                code = transaction_error(answer.verdict, knows_fenced=request.api_version >= _FIRST_ADD_WITH_FENCED)
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


FIRST_WITH_BUMP = 5
_FIRST_END_WITH_FENCED = 2


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
        return transaction_error(answer.verdict, knows_fenced=version >= _FIRST_END_WITH_FENCED), answer.producer
