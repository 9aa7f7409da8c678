"""Consumer groups: list them, and read, commit and delete their offsets.

Place: under `headrace groups` and the console; group_members.py has their members.
Invariant: a commit is made as a group without members: the coordinator refuses it while there are any.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.cli.client.cluster import KafkaCluster, require
from headrace.cli.client.offsets import TopicPartition
from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import InvalidError

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
