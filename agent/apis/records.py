"""Produce, Fetch and what else names records by their offsets, except those of groups.

Produce and Fetch ask for their topics by themselves: they are called most often.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator

from kio.schema.delete_records.v2.request import DeleteRecordsRequest
from kio.schema.delete_records.v2.response import DeleteRecordsResponse

from headrace.agent.access.audited_changes import Change, of_entities
from headrace.agent.access.authorization.ask import GatedRequest, split
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, Rule, by_name, each
from headrace.agent.apis.api_row import ApiRow
from headrace.agent.apis.parts import BrokerParts
from headrace.agent.fetch.offsets.offset_for_leader_epoch import OffsetForLeaderEpoch
from headrace.agent.topics.delete_records import DeleteRecords
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import Response

_TOPIC = AclResource.TOPIC
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
