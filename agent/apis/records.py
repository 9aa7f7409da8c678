"""The APIs about records: Produce, Fetch, what else names records by their offsets, transactions of producers.

Place: rows of all_apis.py, except those of groups; TxnOffsetCommit is in offsets.py. Produce and Fetch ask for their
topics by themselves: they are called most often. DescribeTransactions asks by itself: kio does not read back the
start time -1 of a transaction that has not begun.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Iterator

from kio.schema.add_partitions_to_txn.v5.response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnTopicResult,
)
from kio.schema.delete_records.v2.request import DeleteRecordsRequest
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v2.response import ListTransactionsResponse
from kio.schema.write_txn_markers.v2.request import WritableTxnMarkerTopic, WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

from headrace.agent.access.audit import Change, of_entities
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, GatedRequest, Rule, by_name, each, split
from headrace.agent.apis.api_row import ApiRow
from headrace.agent.apis.parts import BrokerParts
from headrace.agent.fetch.offsets.offset_requests import OffsetForLeaderEpoch
from headrace.agent.limits.work_slices import WorkSlices
from headrace.agent.topics.deletions import DeleteRecords
from headrace.agent.topics.partition_requests import DescribeProducers
from headrace.agent.transactions.producer_requests import AddOffsetsToTxn, AddPartitionsToTxn, EndTxn, InitProducerId
from headrace.agent.transactions.tool_requests import DescribeTransactions, ListTransactions, WriteTxnMarkers
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import RequestHandler, Response

_NAME, _GROUP, _TOPIC, _CLUSTER = (
    AclResource.TRANSACTIONAL_ID,
    AclResource.GROUP,
    AclResource.TOPIC,
    AclResource.CLUSTER,
)
_NO_PRODUCER = {"producer_id": -1, "producer_epoch": -1}
_FIRST_ADD_OF_BROKERS = 4
"""The version of AddPartitionsToTxn from which on only Kafka's brokers send it."""
_FIRST_END_WITH_PRODUCER = 5


def _init_producer_id(ask: GatedRequest) -> Awaitable[Response]:
    transactional_id = ask.entity.transactional_id
    if transactional_id is not None:
        if ask.allows(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, transactional_id):
            return ask.pass_on()
        return ask.refuse(FAILED[AclResource.TRANSACTIONAL_ID], **_NO_PRODUCER)
    if ask.access.allows_any(AclOperation.WRITE, AclResource.TOPIC):
        return ask.pass_on()
    if ask.allows(AclOperation.IDEMPOTENT_WRITE, _CLUSTER):
        return ask.pass_on()
    return ask.refuse(FAILED[_CLUSTER], **_NO_PRODUCER)


def _add_partitions(ask: GatedRequest) -> Awaitable[Response]:
    if ask.request.api_version >= _FIRST_ADD_OF_BROKERS:
        if ask.allows(AclOperation.CLUSTER_ACTION, _CLUSTER):
            return ask.pass_on()
        return ask.answer(error_code=FAILED[_CLUSTER])
    topics = ask.entity.v3_and_below_topics
    if not ask.allows(AclOperation.WRITE, _NAME, ask.entity.v3_and_below_transactional_id):
        return _partitions_refused(ask, dict.fromkeys((topic.name for topic in topics), FAILED[_NAME]))
    codes = {
        topic.name: ErrorCode.operation_not_attempted
        if ask.allows(AclOperation.WRITE, _TOPIC, topic.name)
        else FAILED[_TOPIC]
        for topic in topics
    }
    return _partitions_refused(ask, codes) if FAILED[_TOPIC] in codes.values() else ask.pass_on()


def _partitions_refused(ask: GatedRequest, codes: dict[str, ErrorCode]) -> Awaitable[Response]:
    """All partitions, by topic: none is added if one may not be."""
    make = ask.schema.make
    results = tuple(
        make(
            AddPartitionsToTxnTopicResult,
            name=topic.name,
            results_by_partition=tuple(
                make(AddPartitionsToTxnPartitionResult, partition_index=index, partition_error_code=codes[topic.name])
                for index in topic.partitions
            ),
        )
        for topic in ask.entity.v3_and_below_topics
    )
    return ask.answer(results_by_topic_v3_and_below=results)


def _add_offsets(ask: GatedRequest) -> Awaitable[Response]:
    if not ask.allows(AclOperation.WRITE, _NAME, ask.entity.transactional_id):
        return ask.refuse(FAILED[_NAME])
    return ask.pass_on() if ask.allows(AclOperation.READ, _GROUP, ask.entity.group_id) else ask.refuse(FAILED[_GROUP])


def _end(ask: GatedRequest) -> Awaitable[Response]:
    if ask.allows(AclOperation.WRITE, _NAME, ask.entity.transactional_id):
        return ask.pass_on()
    if ask.request.api_version < _FIRST_END_WITH_PRODUCER:
        return ask.refuse(FAILED[_NAME])
    return ask.refuse(FAILED[_NAME], producer_id=-1, producer_epoch=-1)


def _write_markers(ask: GatedRequest) -> Awaitable[Response]:
    """Ask what Kafka asks: ALTER is enough for a tool."""
    if ask.access.allows(AclOperation.ALTER, _CLUSTER) or ask.allows(AclOperation.CLUSTER_ACTION, _CLUSTER):
        return ask.pass_on()
    make, code = ask.schema.make, FAILED[_CLUSTER]

    def refused(topic: WritableTxnMarkerTopic) -> WritableTxnMarkerTopicResult:
        partitions = tuple(
            make(WritableTxnMarkerPartitionResult, partition_index=index, error_code=code)
            for index in topic.partition_indexes
        )
        return make(WritableTxnMarkerTopicResult, name=topic.name, partitions=partitions)

    return ask.answer(
        markers=tuple(
            make(
                WritableTxnMarkerResult,
                producer_id=marker.producer_id,
                topics=tuple(map(refused, marker.topics)),
            )
            for marker in ask.entity.markers
        )
    )


def _list(ask: GatedRequest) -> Awaitable[Response]:
    async def seen(entity: ListTransactionsResponse) -> ListTransactionsResponse:
        states = await ask.seen(_NAME, entity.transaction_states, lambda one: str(one.transactional_id), WorkSlices())
        return dataclasses.replace(entity, transaction_states=states)

    return ask.pass_on_changed(seen)


@of_entities
def written_markers(request: WriteTxnMarkersRequest, response: WriteTxnMarkersResponse) -> Iterator[Change]:
    for marker in response.markers:
        for topic in marker.topics:
            for partition in topic.partitions:
                detail = (
                    f"partition {partition.partition_index} transaction of producer id {marker.producer_id} aborted"
                )
                yield Change(f"TOPIC:{topic.name}", partition.error_code, detail)


def _make_init_producer_id(of: BrokerParts) -> RequestHandler:
    return InitProducerId(
        of.producer_ids,
        of.cluster,
        of.metastore.transactions,
        lambda: of.in_force.current().transaction_max_timeout_ms,
        of.refused,
        of.fetch.on_ended,
        of.rows,
    )


_WRITES = Check(AclOperation.WRITE, _NAME, FAILED[_NAME])
TRANSACTION_ROWS: dict[int, ApiRow[BrokerParts]] = {
    ApiKey.INIT_PRODUCER_ID: ApiRow(
        _make_init_producer_id,
        Rule(
            _init_producer_id,
            (
                Check(AclOperation.WRITE, _NAME, FAILED[_NAME], "if it is given"),
                Check(AclOperation.IDEMPOTENT_WRITE, _CLUSTER, FAILED[_CLUSTER], "otherwise; or WRITE on any topic"),
            ),
        ),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiRow(
        lambda of: AddPartitionsToTxn(of.cluster, of.metastore.transactions),
        Rule(
            _add_partitions,
            (
                _WRITES,
                Check(AclOperation.WRITE, _TOPIC, FAILED[_TOPIC], "each topic"),
                Check(AclOperation.CLUSTER_ACTION, _CLUSTER, FAILED[_CLUSTER], "versions from 4 on, instead"),
            ),
        ),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: ApiRow(
        lambda of: AddOffsetsToTxn(of.metastore.transactions, of.metastore.groups.list_groups),
        Rule(_add_offsets, (_WRITES, Check(AclOperation.READ, _GROUP, FAILED[_GROUP]))),
    ),
    ApiKey.END_TXN: ApiRow(
        lambda of: EndTxn(of.metastore.transactions, of.producer_ids, of.fetch.on_ended, of.registry),
        Rule(_end, (_WRITES,)),
    ),
    ApiKey.WRITE_TXN_MARKERS: ApiRow(
        lambda of: WriteTxnMarkers(of.cluster, of.metastore.transactions, of.fetch.on_ended),
        Rule(
            _write_markers, (Check(AclOperation.CLUSTER_ACTION, _CLUSTER, FAILED[_CLUSTER], "the cluster; or ALTER"),)
        ),
        written_markers,
    ),
    ApiKey.DESCRIBE_PRODUCERS: ApiRow(
        lambda of: DescribeProducers(of.cluster, of.metastore.reports),
        each("topics", "topics", AclOperation.READ, _TOPIC, by_name),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: ApiRow(
        lambda of: DescribeTransactions(of.cluster, of.metastore.transactions, of.enforced),
        Rule(
            None,
            (
                Check(AclOperation.DESCRIBE, _NAME, FAILED[_NAME], "each transactional id"),
                Check(AclOperation.DESCRIBE, _TOPIC, None, "topics of the transaction"),
            ),
        ),
    ),
    ApiKey.LIST_TRANSACTIONS: ApiRow(
        lambda of: ListTransactions(of.cluster, of.metastore.transactions, of.fetch.database_now_ms, of.shared),
        Rule(_list, (Check(AclOperation.DESCRIBE, _NAME, None, "each transactional id"),)),
    ),
}


_DENIED = FAILED[_TOPIC]


def _leader_epochs(ask: GatedRequest) -> Awaitable[Response]:
    if ask.access.allows(AclOperation.CLUSTER_ACTION, AclResource.CLUSTER):
        return ask.pass_on()
    return split(
        ask,
        "topics",
        "topics",
        lambda topic: ask.allows(AclOperation.DESCRIBE, _TOPIC, topic.topic),
        lambda topic: ask.refused("topics", topic, _DENIED),
    )


@of_entities
def deleted_records(request: DeleteRecordsRequest, response: DeleteRecordsResponse) -> Iterator[Change]:
    for topic in response.topics:
        for partition in topic.partitions:
            before = f"before offset {partition.low_watermark}"
            yield Change(f"TOPIC:{topic.name}", partition.error_code, f"partition {partition.partition_index} {before}")


RECORD_ROWS: dict[int, ApiRow[BrokerParts]] = {
    ApiKey.PRODUCE: ApiRow(
        lambda of: of.traffic.counted_produce(of.produce.handle),
        Rule(
            None,
            (
                Check(
                    AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, FAILED[AclResource.TRANSACTIONAL_ID], "if given"
                ),
                Check(AclOperation.WRITE, _TOPIC, _DENIED, "each topic"),
            ),
        ),
    ),
    ApiKey.FETCH: ApiRow(
        lambda of: of.fetch.handle_fetch,
        Rule(
            None,
            (
                Check(AclOperation.READ, _TOPIC, _DENIED, "each topic"),
                Check(
                    AclOperation.CLUSTER_ACTION, AclResource.CLUSTER, _DENIED, "`__cluster_metadata`, instead of READ"
                ),
            ),
        ),
    ),
    ApiKey.LIST_OFFSETS: ApiRow(
        lambda of: of.fetch.handle_list_offsets, each("topics", "topics", AclOperation.DESCRIBE, _TOPIC, by_name)
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiRow(
        lambda of: OffsetForLeaderEpoch(of.cluster, of.metastore),
        Rule(
            _leader_epochs,
            (Check(AclOperation.DESCRIBE, _TOPIC, _DENIED, "each topic; or CLUSTER_ACTION on the cluster"),),
        ),
    ),
    ApiKey.DELETE_RECORDS: ApiRow(
        lambda of: DeleteRecords(of.cluster, of.metastore.retention, of.configs, of.fetch.before_log_starts_move),
        each("topics", "topics", AclOperation.DELETE, _TOPIC, by_name),
        deleted_records,
    ),
}
