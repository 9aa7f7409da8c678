"""The APIs of share groups: SHARE_RECORD_ROWS on any agent, SHARE_GROUP_ROWS at the group's coordinator.

Source: KIP-932.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from kio.schema.alter_share_group_offsets.v0.request import AlterShareGroupOffsetsRequest
from kio.schema.alter_share_group_offsets.v0.response import AlterShareGroupOffsetsResponse
from kio.schema.delete_share_group_offsets.v0.request import DeleteShareGroupOffsetsRequest
from kio.schema.delete_share_group_offsets.v0.response import DeleteShareGroupOffsetsResponse
from kio.schema.errors import ErrorCode

from headrace.agent.access.audited_changes import Change, of_entities
from headrace.agent.access.authorization.ask import DENIED_UNITS, GatedRequest, split
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, Rule
from headrace.agent.apis.api_row import ApiRow
from headrace.agent.apis.group_parts import GroupParts
from headrace.agent.apis.parts import BrokerParts
from headrace.agent.apis.shared_rules import (
    DESCRIBE_WITH_TOPICS,
    HEARTBEAT_CHECKS,
    heartbeat_with_topics,
    refused_topic,
)
from headrace.agent.groups.share.describe_request import ShareGroupDescribe
from headrace.agent.groups.share.heartbeat_request import ShareGroupHeartbeat
from headrace.agent.groups.share.offsets_requests import (
    AlterShareGroupOffsets,
    DeleteShareGroupOffsets,
    DescribeShareGroupOffsets,
)
from headrace.agent.limits.work_slices import TOPIC_UNITS, WorkSlices
from headrace.agent.peers.forwarding.routes import Elements, Whole
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import Response

_GROUP, _TOPIC = AclResource.GROUP, AclResource.TOPIC
_GROUP_DENIED, _DENIED = FAILED[_GROUP], FAILED[_TOPIC]
_BY_FIRST_FIELD = Whole.GROUP_IN_FIRST_FIELD


def _read_group(ask: GatedRequest) -> Awaitable[Response]:
    """Leave topics to the handler: the request names them by id, or not at all."""
    if not ask.allows(AclOperation.READ, _GROUP, ask.entity.group_id or ""):
        return ask.refuse(_GROUP_DENIED)
    return ask.pass_on()


def _of_share_group(operation: AclOperation) -> Callable[[GatedRequest], Awaitable[Response]]:
    """Alter or delete: the operation on the group, and READ on each topic."""

    def serve(ask: GatedRequest) -> Awaitable[Response]:
        if not ask.allows(operation, _GROUP, ask.entity.group_id):
            return ask.refuse(FAILED[_GROUP])
        return split(
            ask,
            "topics",
            "responses",
            lambda topic: ask.allows(AclOperation.READ, _TOPIC, topic.topic_name),
            lambda topic: ask.refused("responses", topic, _DENIED),
        )

    return serve


async def _describe_share_offsets(ask: GatedRequest) -> Response:
    """Groups without DESCRIBE get the error; of the others, topics without it do, or are left out.

    The handler never sees a topic that the client may not describe: the order and the number of the partitions of its
    answer would say which of them exist.
    """
    slices = WorkSlices()
    allowed, refused, denied = [], list[Any](), defaultdict[str, list[Any]](list)
    for group in ask.entity.groups:
        await slices.did(TOPIC_UNITS)
        if not ask.allows(AclOperation.DESCRIBE, _GROUP, group.group_id):
            refused.append(dataclasses.replace(ask.refused("groups", group, FAILED[_GROUP]), topics=()))
            await slices.did(DENIED_UNITS)
            continue
        if group.topics is not None:
            verdicts = await slices.each(
                lambda topic: (topic, ask.allows(AclOperation.DESCRIBE, _TOPIC, topic.topic_name)),
                group.topics,
                DENIED_UNITS,
            )
            denied[group.group_id] += [refused_topic(ask, topic, _DENIED) for topic, good in verdicts if not good]
            group = dataclasses.replace(group, topics=tuple(topic for topic, good in verdicts if good))
        allowed.append(group)

    async def shown(group: Any) -> Any:
        if group.error_code:
            return group
        seen = await ask.seen(_TOPIC, group.topics, lambda topic: str(topic.topic_name), slices)
        return dataclasses.replace(group, topics=(*seen, *denied.get(group.group_id, ())))

    async def change(entity: Any) -> Any:
        return dataclasses.replace(entity, groups=(*[await shown(group) for group in entity.groups], *refused))

    if not allowed:
        return await ask.answer(groups=tuple(refused))
    return await ask.pass_on_changed(change, groups=tuple(allowed))


@of_entities
def altered_share_offsets(
    request: AlterShareGroupOffsetsRequest, response: AlterShareGroupOffsetsResponse
) -> Iterator[Change]:
    if response.error_code != ErrorCode.none:
        yield Change(f"GROUP:{request.group_id}", response.error_code, "share offsets")
        return
    for topic in response.responses:
        for partition in topic.partitions:
            what = f"share offset of {topic.topic_name} partition {partition.partition_index}"
            yield Change(f"GROUP:{request.group_id}", partition.error_code, what)


@of_entities
def deleted_share_offsets(
    request: DeleteShareGroupOffsetsRequest, response: DeleteShareGroupOffsetsResponse
) -> Iterator[Change]:
    if response.error_code != ErrorCode.none:
        yield Change(f"GROUP:{request.group_id}", response.error_code, "share offsets")
        return
    for topic in response.responses:
        yield Change(f"GROUP:{request.group_id}", topic.error_code, f"share offsets of {topic.topic_name}")


_READS_GROUP = Check(AclOperation.READ, _GROUP, FAILED[_GROUP])
_READS_EACH_TOPIC = Check(AclOperation.READ, _TOPIC, _DENIED, "each topic")
_READ_RECORDS = Rule(_read_group, (_READS_GROUP, _READS_EACH_TOPIC))
SHARE_RECORD_ROWS: dict[int, ApiRow[BrokerParts]] = {
    ApiKey.SHARE_FETCH: ApiRow(lambda of: of.share.fetch, _READ_RECORDS),
    ApiKey.SHARE_ACKNOWLEDGE: ApiRow(lambda of: of.share.acknowledge, _READ_RECORDS),
}
SHARE_GROUP_ROWS: dict[int, ApiRow[GroupParts]] = {
    ApiKey.SHARE_GROUP_HEARTBEAT: ApiRow(
        lambda of: ShareGroupHeartbeat(of.groups, of.share_groups, lambda: of.cluster.image),
        Rule(heartbeat_with_topics, HEARTBEAT_CHECKS),
        route=_BY_FIRST_FIELD,
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: ApiRow(
        lambda of: ShareGroupDescribe(of.administration, of.share_rules, lambda: of.cluster.image),
        DESCRIBE_WITH_TOPICS,
        route=Elements("group_ids", "groups"),
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ApiRow(
        lambda of: DescribeShareGroupOffsets(of.share_offsets, of.cluster, of.share_rules),
        Rule(
            _describe_share_offsets,
            (
                Check(AclOperation.DESCRIBE, _GROUP, FAILED[_GROUP], "each group"),
                Check(AclOperation.DESCRIBE, _TOPIC, _DENIED, "each topic"),
                Check(AclOperation.DESCRIBE, _TOPIC, None, "all topics of a group"),
            ),
        ),
        route=Elements("groups", "groups", lambda group: str(group.group_id)),
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: ApiRow(
        lambda of: AlterShareGroupOffsets(of.share_offsets, of.cluster, of.share_rules),
        Rule(_of_share_group(AclOperation.READ), (_READS_GROUP, _READS_EACH_TOPIC)),
        altered_share_offsets,
        _BY_FIRST_FIELD,
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: ApiRow(
        lambda of: DeleteShareGroupOffsets(of.share_offsets, of.cluster, of.share_rules),
        Rule(
            _of_share_group(AclOperation.DELETE),
            (Check(AclOperation.DELETE, _GROUP, FAILED[_GROUP]), _READS_EACH_TOPIC),
        ),
        deleted_share_offsets,
        _BY_FIRST_FIELD,
    ),
}
