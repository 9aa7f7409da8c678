"""Share groups (KIP-932): their members, where they are in each partition, and changes of that.

Place: under `headrace groups` and the console, as Kafka's kafka-share-groups.sh.
Invariant: only a group without members is changed: the coordinator refuses it otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.cli.client.cluster import KafkaCluster, require
from headrace.cli.client.group_members import MemberRow
from headrace.cli.client.offsets import TopicPartition
from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import InvalidError

NOT_BEGUN = -1
_NO_SHARE_GROUP = frozenset((ErrorCode.group_id_not_found, ErrorCode.unsupported_version))


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
    if found.error_code in _NO_SHARE_GROUP:
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
