"""Groups of any type: their members, their offsets, changes of the offsets.

Place: under `headrace groups` and the console. Consumer groups are classic or KIP-848, or streams
groups (KIP-1071); share groups (KIP-932) are handled as Kafka's kafka-share-groups.sh does.
Invariant of members: the assignment of a classic member is opaque bytes; if it cannot be parsed, it is shown as
empty.
Invariant: a commit is made as a group without members: the coordinator refuses it while there are any.
Invariant of share groups: only a group without members is changed: the coordinator refuses it otherwise.
Invariant of any type: start offsets of a share group are changed by its own request; a commit would make another
group of it.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.cli.client.offsets import TopicPartition
from headrace.protocol import wire
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, require
from headrace.storage.errors import InvalidError, NotFoundError

MemberRow = dict[str, Any]
_CONSUMER = "consumer"
_NO_SUCH_GROUP = frozenset((ErrorCode.group_id_not_found, ErrorCode.unsupported_version))


def members_of(cluster: KafkaCluster, group: str) -> list[MemberRow]:
    """Each: member, instance, client, host, assignment (`topic:partition` texts). NotFoundError if the group is
    unknown.
    """
    node_id = cluster.coordinator(group)
    if cluster.serves(ApiKey.CONSUMER_GROUP_DESCRIBE):
        m = cluster.message(ApiKey.CONSUMER_GROUP_DESCRIBE)
        request = m.request(group_ids=(group,), include_authorized_operations=False)
        (found,) = cluster.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, request, node_id).groups
        if found.error_code is not ErrorCode.group_id_not_found:
            require(found.error_code, found.error_message, group)
            return [_of_consumer_group(member) for member in found.members]
    if cluster.serves(ApiKey.STREAMS_GROUP_DESCRIBE):
        m = cluster.message(ApiKey.STREAMS_GROUP_DESCRIBE)
        request = m.request(group_ids=(group,), include_authorized_operations=False)
        (found,) = cluster.ask(ApiKey.STREAMS_GROUP_DESCRIBE, request, node_id).groups
        if found.error_code not in _NO_SUCH_GROUP:
            require(found.error_code, found.error_message, group)
            return [_of_streams_group(found, member) for member in found.members]
    m = cluster.message(ApiKey.DESCRIBE_GROUPS)
    request = m.request(groups=(group,), include_authorized_operations=False)
    (found,) = cluster.ask(ApiKey.DESCRIBE_GROUPS, request, node_id).groups
    if found.error_code is ErrorCode.group_id_not_found or found.group_state == "Dead":
        raise NotFoundError(f"group does not exist: {group}")
    require(found.error_code, getattr(found, "error_message", None), group)
    is_consumer = found.protocol_type == _CONSUMER
    return [
        {
            "member": member.member_id,
            "instance": getattr(member, "group_instance_id", None),
            "client": member.client_id,
            "host": member.client_host,
            "assignment": _assigned(member.member_assignment) if is_consumer else [],
        }
        for member in found.members
    ]


def _of_consumer_group(member: Any) -> MemberRow:
    return {
        "member": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "assignment": [
            f"{topic.topic_name}:{index}" for topic in member.assignment.topic_partitions for index in topic.partitions
        ],
    }


def _of_streams_group(group: Any, member: Any) -> MemberRow:
    """Return the member with the partitions that its active tasks consume."""
    reads = {
        each.subtopology_id: (*each.source_topics, *(topic.name for topic in each.repartition_source_topics))
        for each in group.topology.subtopologies or ()
    }
    tasks = [(each.subtopology_id, index) for each in member.assignment.active_tasks for index in each.partitions]
    return {
        "member": member.member_id,
        "instance": member.instance_id,
        "client": member.client_id,
        "host": member.client_host,
        "assignment": [f"{topic}:{index}" for name, index in tasks for topic in reads.get(name, ())],
    }


def _assigned(data: bytes) -> list[str]:
    """ConsumerProtocolAssignment: int16 version, then an array of (topic, array of int32 partitions)."""
    found: list[str] = []
    view = memoryview(data)
    try:
        count, position = wire.read_count(view, 2, flexible=False)
        for _ in range(count):
            topic, position = wire.read_string(view, position, flexible=False)
            partitions, position = wire.read_count(view, position, flexible=False)
            indexes = struct.unpack_from(f">{partitions}i", view, position)
            position += 4 * partitions
            found += [f"{topic}:{index}" for index in sorted(indexes)]
    except wire.MALFORMED:
        return []
    return found


FILTERED_FROM = {"state": 4, "type": 5}
"""The first version of ListGroups with this filter."""
NO_GENERATION = -1
NOTHING_COMMITTED = -1


def list_groups(
    cluster: KafkaCluster, states: Sequence[str] = (), types: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """List the groups by id; each broker lists the groups it coordinates. InvalidError if the cluster is too old
    for a filter.
    """
    m = cluster.message(ApiKey.LIST_GROUPS)
    for name, wanted in (("state", states), ("type", types)):
        if wanted and m.version < FILTERED_FROM[name]:
            raise InvalidError(f"the cluster is too old to filter groups by --{name}")
    request = m.request(states_filter=tuple(states), types_filter=tuple(types))
    found: dict[str, dict[str, Any]] = {}
    for node_id in cluster.nodes():
        answer = cluster.ask(ApiKey.LIST_GROUPS, request, node_id)
        require(answer.error_code)
        for group in answer.groups:
            found[group.group_id] = {
                "group": group.group_id,
                "state": getattr(group, "group_state", None),
                "type": getattr(group, "group_type", None),
                "protocol": group.protocol_type or None,
                "coordinator": node_id,
            }
    return {name: found[name] for name in sorted(found)}


def committed_offsets(cluster: KafkaCluster, group: str) -> dict[TopicPartition, int]:
    """Return the committed offsets of every partition that the group has committed. Errors as `require`."""
    m = cluster.message(ApiKey.OFFSET_FETCH)
    request = m.request(group_id=group, topics=None, require_stable=False)
    answer = cluster.ask(ApiKey.OFFSET_FETCH, request, cluster.coordinator(group))
    require(answer.error_code, None, group)
    found = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            require(partition.error_code, None, f"{topic.name}:{partition.partition_index}")
            if partition.committed_offset != NOTHING_COMMITTED:
                found[str(topic.name), int(partition.partition_index)] = int(partition.committed_offset)
    return found


def commit_offsets(cluster: KafkaCluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """InvalidError if the group has members; other errors as `require`."""
    m = cluster.message(ApiKey.OFFSET_COMMIT)
    topics: dict[str, list[Any]] = {}
    for (topic, index), offset in offsets.items():
        partition = m.make(
            "OffsetCommitRequestPartition",
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        topics.setdefault(topic, []).append(partition)
    request = m.request(
        group_id=group,
        generation_id_or_member_epoch=NO_GENERATION,
        member_id="",
        group_instance_id=None,
        retention_time=datetime.timedelta(milliseconds=-1),
        topics=tuple(
            m.make("OffsetCommitRequestTopic", name=topic, partitions=tuple(partitions))
            for topic, partitions in topics.items()
        ),
    )
    for topic in cluster.ask(ApiKey.OFFSET_COMMIT, request, cluster.coordinator(group)).topics:
        for partition in topic.partitions:
            if partition.error_code in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
                raise InvalidError(f"the group has members, stop them first: group={group}")
            require(partition.error_code, None, f"{topic.name}:{partition.partition_index}")


def delete_offsets(cluster: KafkaCluster, group: str, partitions: Iterable[TopicPartition]) -> None:
    """Forget committed offsets. InvalidError if members consume the topic; other errors as `require`."""
    m = cluster.message(ApiKey.OFFSET_DELETE)
    topics: dict[str, list[Any]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(m.make("OffsetDeleteRequestPartition", partition_index=index))
    request = m.request(
        group_id=group,
        topics=tuple(
            m.make("OffsetDeleteRequestTopic", name=name, partitions=tuple(parts)) for name, parts in topics.items()
        ),
    )
    answer = cluster.ask(ApiKey.OFFSET_DELETE, request, cluster.coordinator(group))
    require(answer.error_code, None, group)
    for deleted in answer.topics:
        for part in deleted.partitions:
            if part.error_code is ErrorCode.group_subscribed_to_topic:
                raise InvalidError(f"members consume the topic, stop them first: group={group} topic={deleted.name}")
            require(part.error_code, None, f"{deleted.name}:{part.partition_index}")


NOT_BEGUN = -1


class ShareGroupView(NamedTuple):
    """A share group. `members` have the keys of group_members.MemberRow."""

    state: str
    group_epoch: int
    assignment_epoch: int
    members: list[MemberRow]


class ShareProgress(NamedTuple):
    """The place of a share group in a partition: every record before `start_offset` is done. `lag`: records from there
    on that are not done; None: not known.
    """

    start_offset: int
    lag: int | None


def describe_share_group(cluster: KafkaCluster, group: str) -> ShareGroupView | None:
    """Return None if there is no share group of this name; other errors as `require`."""
    if not cluster.serves(ApiKey.SHARE_GROUP_DESCRIBE):
        return None
    m = cluster.message(ApiKey.SHARE_GROUP_DESCRIBE)
    request = m.request(group_ids=(group,), include_authorized_operations=False)
    (found,) = cluster.ask(ApiKey.SHARE_GROUP_DESCRIBE, request, cluster.coordinator(group)).groups
    if found.error_code in _NO_SUCH_GROUP:
        return None
    require(found.error_code, found.error_message, group)
    members = [
        {
            "member": member.member_id,
            "instance": None,
            "client": member.client_id,
            "host": member.client_host,
            "assignment": [
                f"{topic.topic_name}:{index}"
                for topic in member.assignment.topic_partitions
                for index in topic.partitions
            ],
        }
        for member in found.members
    ]
    return ShareGroupView(found.group_state, found.group_epoch, found.assignment_epoch, members)


def share_progress(cluster: KafkaCluster, group: str) -> dict[TopicPartition, ShareProgress]:
    """Return where the group is in each partition that it has begun. Errors as `require`."""
    (found,) = _offsets(cluster, [group], cluster.coordinator(group))
    require(found.error_code, found.error_message, group)
    return _progress(found)


def share_lags(cluster: KafkaCluster, coordinators: Mapping[str, int]) -> dict[str, int | None]:
    """Return the lag of each share group; None where it is not known. `coordinators`: group -> node id."""
    by_node: dict[int, list[str]] = {}
    for group, node_id in coordinators.items():
        by_node.setdefault(node_id, []).append(group)
    lags: dict[str, int | None] = {}
    for node_id, groups in by_node.items():
        for found in _offsets(cluster, groups, node_id):
            progress = {} if found.error_code is not ErrorCode.none else _progress(found)
            known = [each.lag for each in progress.values() if each.lag is not None]
            lags[str(found.group_id)] = sum(known) if len(known) == len(progress) and known else None
    return lags


def _offsets(cluster: KafkaCluster, groups: Iterable[str], node_id: int) -> tuple[Any, ...]:
    m = cluster.message(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS)
    asked = tuple(m.make("DescribeShareGroupOffsetsRequestGroup", group_id=group, topics=None) for group in groups)
    found: tuple[Any, ...] = cluster.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, m.request(groups=asked), node_id).groups
    return found


def _progress(found: Any) -> dict[TopicPartition, ShareProgress]:
    progress = {}
    for topic in found.topics:
        for part in topic.partitions:
            require(part.error_code, part.error_message, f"{topic.topic_name}:{part.partition_index}")
            if part.start_offset != NOT_BEGUN:
                lag = getattr(part, "lag", -1)
                place = str(topic.topic_name), int(part.partition_index)
                progress[place] = ShareProgress(int(part.start_offset), None if lag < 0 else int(lag))
    return progress


def alter_share_offsets(cluster: KafkaCluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Let the group continue at these offsets. InvalidError if it has members; other errors as `require`."""
    m = cluster.message(ApiKey.ALTER_SHARE_GROUP_OFFSETS)
    topics: dict[str, list[Any]] = {}
    for (topic, index), offset in offsets.items():
        part = m.make("AlterShareGroupOffsetsRequestPartition", partition_index=index, start_offset=offset)
        topics.setdefault(topic, []).append(part)
    request = m.request(
        group_id=group,
        topics=tuple(
            m.make("AlterShareGroupOffsetsRequestTopic", topic_name=topic, partitions=tuple(parts))
            for topic, parts in topics.items()
        ),
    )
    answer = cluster.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, request, cluster.coordinator(group))
    _require(answer, group)
    for altered in answer.responses:
        for part in altered.partitions:
            require(part.error_code, part.error_message, f"{altered.topic_name}:{part.partition_index}")


def delete_share_offsets(cluster: KafkaCluster, group: str, topics: Iterable[str]) -> None:
    """Forget what the group has done in these topics. InvalidError if it has members; other errors as `require`."""
    m = cluster.message(ApiKey.DELETE_SHARE_GROUP_OFFSETS)
    request = m.request(
        group_id=group,
        topics=tuple(m.make("DeleteShareGroupOffsetsRequestTopic", topic_name=topic) for topic in topics),
    )
    answer = cluster.ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, request, cluster.coordinator(group))
    _require(answer, group)
    for deleted in answer.responses:
        require(deleted.error_code, deleted.error_message, str(deleted.topic_name))


def _require(answer: Any, group: str) -> None:
    if answer.error_code is ErrorCode.non_empty_group:
        raise InvalidError(f"the group has members, stop them first: group={group}")
    require(answer.error_code, answer.error_message, group)


class OffsetsOfGroup(NamedTuple):
    """`offsets`: committed ones, or the start offsets of a share group. `change` sets others."""

    offsets: dict[TopicPartition, int]
    members: list[MemberRow]
    change: Callable[[KafkaCluster, str, Mapping[TopicPartition, int]], None]


def offsets_of(cluster: KafkaCluster, group: str, *, must_exist: bool = False) -> OffsetsOfGroup:
    """`must_exist`: NotFoundError if there is nothing of the group. Other errors as `require`."""
    share = cluster.look_again(lambda: describe_share_group(cluster, group))
    if share is not None:
        progress = cluster.look_again(lambda: share_progress(cluster, group))
        offsets = {place: each.start_offset for place, each in progress.items()}
        return OffsetsOfGroup(offsets, share.members, alter_share_offsets)
    committed = cluster.look_again(lambda: committed_offsets(cluster, group))
    members = read_members(cluster, group, has_offsets=bool(committed) or not must_exist)
    return OffsetsOfGroup(committed, members, commit_offsets)


def read_members(cluster: KafkaCluster, group: str, *, has_offsets: bool) -> list[MemberRow]:
    """Return the members of a consumer group; none of a group that only has committed offsets. NotFoundError if it has
    none of those either.
    """
    try:
        return cluster.look_again(lambda: members_of(cluster, group))
    except NotFoundError:
        if not has_offsets:
            raise
        return []
