"""The APIs of groups: classic ones, consumer groups, share groups, streams groups.

Place: rows of all_apis.py, except those of committed offsets (offsets.py). SHARE_RECORD_ROWS are served on any
agent, the other rows at the group's coordinator.
Source: KIP-932 (share groups), KIP-1071 (streams groups).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from kio.schema.alter_share_group_offsets.v0.request import AlterShareGroupOffsetsRequest
from kio.schema.alter_share_group_offsets.v0.response import AlterShareGroupOffsetsResponse
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeleteGroupsResponse
from kio.schema.delete_share_group_offsets.v0.request import DeleteShareGroupOffsetsRequest
from kio.schema.delete_share_group_offsets.v0.response import DeleteShareGroupOffsetsResponse
from kio.schema.describe_groups.v6.response import DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.response import ListGroupsResponse

from headrace.agent.access.audit import Change, of_entities
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import (
    DENIED_UNITS,
    FAILED,
    Check,
    GatedRequest,
    Rule,
    each,
    group_of,
    itself,
    split,
    whole,
)
from headrace.agent.apis.api_row import (
    DESCRIBE_WITH_TOPICS,
    HEARTBEAT_CHECKS,
    OPERATIONS_UNITS,
    ApiRow,
    describe_groups,
    group_operations,
    heartbeat_with_topics,
    refused_topic,
)
from headrace.agent.apis.parts import BrokerParts, GroupParts
from headrace.agent.groups.administration import DeleteGroups, ListGroups
from headrace.agent.groups.classic.coordinator import DescribeGroups, Heartbeat, JoinGroup, LeaveGroup, SyncGroup
from headrace.agent.groups.consumer.coordinator import ConsumerGroupHeartbeat
from headrace.agent.groups.consumer.describe_request import ConsumerGroupDescribe
from headrace.agent.groups.share.coordinator import ShareGroupHeartbeat
from headrace.agent.groups.share.describe_request import ShareGroupDescribe
from headrace.agent.groups.share.offsets import (
    AlterShareGroupOffsets,
    DeleteShareGroupOffsets,
    DescribeShareGroupOffsets,
)
from headrace.agent.groups.streams.coordinator import StreamsGroupHeartbeat, topic_names
from headrace.agent.groups.streams.describe_request import StreamsGroupDescribe
from headrace.agent.limits.work_slices import TOPIC_UNITS, WorkSlices
from headrace.agent.peers.forwarding.forwarding import Elements, Whole
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import Response

_GROUP, _TOPIC = AclResource.GROUP, AclResource.TOPIC
_DENIED = FAILED[_GROUP]
_BY_FIRST_FIELD = Whole.GROUP_IN_FIRST_FIELD
_MEMBER = whole(AclOperation.READ, _GROUP, group_of)


def _list(ask: GatedRequest) -> Awaitable[Response]:
    if ask.access.allows(AclOperation.DESCRIBE, AclResource.CLUSTER):
        return ask.pass_on()

    async def seen(entity: ListGroupsResponse) -> ListGroupsResponse:
        groups = await ask.seen(_GROUP, entity.groups, lambda one: str(one.group_id), WorkSlices())
        return dataclasses.replace(entity, groups=groups)

    return ask.pass_on_changed(seen)


def _describe(ask: GatedRequest) -> Awaitable[Response]:
    async def change(entity: DescribeGroupsResponse) -> DescribeGroupsResponse:
        groups = await WorkSlices().each(partial(group_operations, ask), entity.groups, OPERATIONS_UNITS)
        return dataclasses.replace(entity, groups=groups)

    return split(
        ask,
        "groups",
        "groups",
        lambda group_id: ask.allows(AclOperation.DESCRIBE, _GROUP, group_id),
        lambda group_id: ask.refused("groups", group_id, _DENIED),
        change,
    )


@of_entities
def deleted_groups(request: DeleteGroupsRequest, response: DeleteGroupsResponse) -> Iterator[Change]:
    for group in response.results:
        yield Change(f"GROUP:{group.group_id}", group.error_code)


GROUP_ROWS: dict[int, ApiRow[GroupParts]] = {
    ApiKey.JOIN_GROUP: ApiRow(lambda of: JoinGroup(of.coordinator, of.in_force), _MEMBER, route=_BY_FIRST_FIELD),
    ApiKey.HEARTBEAT: ApiRow(lambda of: Heartbeat(of.coordinator), _MEMBER, route=_BY_FIRST_FIELD),
    ApiKey.LEAVE_GROUP: ApiRow(lambda of: LeaveGroup(of.coordinator), _MEMBER, route=_BY_FIRST_FIELD),
    ApiKey.SYNC_GROUP: ApiRow(lambda of: SyncGroup(of.coordinator), _MEMBER, route=_BY_FIRST_FIELD),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ApiRow(
        lambda of: ConsumerGroupHeartbeat(of.groups, of.consumer_groups, of.rng, keeps_principals=of.keeps_principals),
        Rule(
            heartbeat_with_topics,
            (*HEARTBEAT_CHECKS, Check(AclOperation.DESCRIBE, _TOPIC, None, "topics that the pattern matches")),
        ),
        route=_BY_FIRST_FIELD,
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ApiRow(
        lambda of: ConsumerGroupDescribe(of.groups, of.consumer_groups, of.administration),
        DESCRIBE_WITH_TOPICS,
        route=Elements("group_ids", "groups"),
    ),
    ApiKey.DESCRIBE_GROUPS: ApiRow(
        lambda of: DescribeGroups(of.administration),
        Rule(_describe, (Check(AclOperation.DESCRIBE, _GROUP, _DENIED, "each group"),)),
        route=Elements("groups", "groups"),
    ),
    ApiKey.LIST_GROUPS: ApiRow(
        lambda of: ListGroups(of.administration),
        Rule(_list, (Check(AclOperation.DESCRIBE, _GROUP, None, "each group; or on the cluster, for all"),)),
        route=Whole.EVERY_AGENT,
    ),
    ApiKey.DELETE_GROUPS: ApiRow(
        lambda of: DeleteGroups(of.administration),
        each("groups_names", "results", AclOperation.DELETE, _GROUP, itself),
        deleted_groups,
        Elements("groups_names", "results"),
    ),
}


_GROUP_DENIED, _TOPIC_DENIED = FAILED[_GROUP], FAILED[_TOPIC]


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
            lambda topic: ask.refused("responses", topic, _TOPIC_DENIED),
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
            denied[group.group_id] += [refused_topic(ask, topic, _TOPIC_DENIED) for topic, good in verdicts if not good]
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
_READS_EACH_TOPIC = Check(AclOperation.READ, _TOPIC, _TOPIC_DENIED, "each topic")
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
                Check(AclOperation.DESCRIBE, _TOPIC, _TOPIC_DENIED, "each topic"),
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


_HIDDEN_TOPICS = "The described group uses topics that the client is not authorized to describe."


async def _streams_heartbeat(ask: GatedRequest) -> Response:
    if not ask.allows(AclOperation.READ, _GROUP, ask.entity.group_id):
        return await ask.refuse(_GROUP_DENIED)
    slices = WorkSlices()
    for name in topic_names(ask.entity):
        await slices.did(TOPIC_UNITS)
        if not ask.allows(AclOperation.DESCRIBE, _TOPIC, name):
            return await ask.refuse(_TOPIC_DENIED)
    return await ask.pass_on()


def _topics_of_topology(group: Any) -> Iterator[list[str]]:
    for part in () if group.topology is None else group.topology.subtopologies or ():
        internal = (*part.repartition_source_topics, *part.state_changelog_topics)
        yield [*part.source_topics, *part.repartition_sink_topics, *(topic.name for topic in internal)]


STREAMS_GROUP_ROWS: dict[int, ApiRow[GroupParts]] = {
    ApiKey.STREAMS_GROUP_HEARTBEAT: ApiRow(
        lambda of: StreamsGroupHeartbeat(of.groups, of.streams_groups, of.internal_topics),
        Rule(
            _streams_heartbeat,
            (
                Check(AclOperation.READ, _GROUP, _GROUP_DENIED),
                Check(AclOperation.DESCRIBE, _TOPIC, _TOPIC_DENIED, "all topics of the topology"),
                Check(AclOperation.CREATE, _TOPIC, None, "all missing internal topics; or on the cluster"),
            ),
        ),
        route=_BY_FIRST_FIELD,
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: ApiRow(
        lambda of: StreamsGroupDescribe(of.administration, of.streams_groups.rules),
        Rule(
            partial(describe_groups, topics=_topics_of_topology, hidden=_HIDDEN_TOPICS),
            (
                Check(AclOperation.DESCRIBE, _GROUP, _GROUP_DENIED, "each group"),
                Check(AclOperation.DESCRIBE, _TOPIC, _TOPIC_DENIED, "all topics of the group's topology"),
            ),
        ),
        route=Elements("group_ids", "groups"),
    ),
}
