"""Rules of the requests of transactional producers, and of tools for transactions.

DescribeTransactions asks by itself: kio does not read back the start time -1 of a transaction that has not begun.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.ask import GatedRequest, split
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, Rule, mirrored
from headrace.agent.limits.work_slices import WorkSlices
from headrace.protocol.request import Response

_NAME, _GROUP, _TOPIC, _CLUSTER = (
    AclResource.TRANSACTIONAL_ID,
    AclResource.GROUP,
    AclResource.TOPIC,
    AclResource.CLUSTER,
)
_FIRST_ADD_OF_BROKERS = 4
"""The version of AddPartitionsToTxn from which on only Kafka's brokers send it."""
_FIRST_END_WITH_PRODUCER = 5


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
            "AddPartitionsToTxnTopicResult",
            name=topic.name,
            results_by_partition=tuple(
                make("AddPartitionsToTxnPartitionResult", partition_index=index, partition_error_code=codes[topic.name])
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


def _commit_offsets(ask: GatedRequest) -> Awaitable[Response]:
    refuse = mirrored("topics", "topics")
    if not ask.allows(AclOperation.WRITE, _NAME, ask.entity.transactional_id):
        return refuse(ask, FAILED[_NAME])
    if not ask.allows(AclOperation.READ, _GROUP, ask.entity.group_id):
        return refuse(ask, FAILED[_GROUP])
    return split(
        ask,
        "topics",
        "topics",
        lambda topic: ask.allows(AclOperation.READ, _TOPIC, topic.name),
        lambda topic: ask.refused("topics", topic, FAILED[_TOPIC]),
    )


def _write_markers(ask: GatedRequest) -> Awaitable[Response]:
    """Ask what Kafka asks: ALTER is enough for a tool."""
    if ask.access.allows(AclOperation.ALTER, _CLUSTER) or ask.allows(AclOperation.CLUSTER_ACTION, _CLUSTER):
        return ask.pass_on()
    make, code = ask.schema.make, FAILED[_CLUSTER]

    def refused(topic: Any) -> Any:
        partitions = tuple(
            make("WritableTxnMarkerPartitionResult", partition_index=index, error_code=code)
            for index in topic.partition_indexes
        )
        return make("WritableTxnMarkerTopicResult", name=topic.name, partitions=partitions)

    return ask.answer(
        markers=tuple(
            make(
                "WritableTxnMarkerResult",
                producer_id=marker.producer_id,
                topics=tuple(map(refused, marker.topics)),
            )
            for marker in ask.entity.markers
        )
    )


def _list(ask: GatedRequest) -> Awaitable[Response]:
    async def seen(entity: Any) -> Any:
        states = await ask.seen(_NAME, entity.transaction_states, lambda one: str(one.transactional_id), WorkSlices())
        return dataclasses.replace(entity, transaction_states=states)

    return ask.pass_on_changed(seen)


_WRITES = Check(AclOperation.WRITE, _NAME, FAILED[_NAME])
_READS_GROUP = Check(AclOperation.READ, _GROUP, FAILED[_GROUP])
ADD_PARTITIONS_TO_TXN = Rule(
    _add_partitions,
    (
        _WRITES,
        Check(AclOperation.WRITE, _TOPIC, FAILED[_TOPIC], "each topic"),
        Check(AclOperation.CLUSTER_ACTION, _CLUSTER, FAILED[_CLUSTER], "versions from 4 on, instead"),
    ),
)
ADD_OFFSETS_TO_TXN = Rule(_add_offsets, (_WRITES, _READS_GROUP))
END_TXN = Rule(_end, (_WRITES,))
TXN_OFFSET_COMMIT = Rule(
    _commit_offsets,
    (_WRITES, _READS_GROUP, Check(AclOperation.READ, _TOPIC, FAILED[_TOPIC], "each topic")),
)
WRITE_TXN_MARKERS = Rule(
    _write_markers, (Check(AclOperation.CLUSTER_ACTION, _CLUSTER, FAILED[_CLUSTER], "the cluster; or ALTER"),)
)
DESCRIBE_TRANSACTIONS = Rule(
    None,
    (
        Check(AclOperation.DESCRIBE, _NAME, FAILED[_NAME], "each transactional id"),
        Check(AclOperation.DESCRIBE, _TOPIC, None, "topics of the transaction"),
    ),
)
LIST_TRANSACTIONS = Rule(_list, (Check(AclOperation.DESCRIBE, _NAME, None, "each transactional id"),))
