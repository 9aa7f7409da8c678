"""What a link asks the coordinators of a source about groups: which there are, and what they committed.

Place: under kafka_source.py, on its threads.
Invariant: what is returned was checked: texts have a bounded length, offsets are offsets, no group or partition is
there twice. A broker that lists no groups for now is an error: the list would not be whole.
Source: KIP-518 (states), KIP-848 (types), KIP-447 (stable offsets), KIP-709 (offsets of several groups).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.compactor.links.chunks import OFFSET_MAX
from headrace.compactor.links.source import (
    EPOCH_MAX,
    TEXT_CHARACTERS_MAX,
    CommittedAt,
    GroupOffsets,
    SourceGroup,
    TopicIndex,
)
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, require
from headrace.protocol.client.messages import message
from headrace.storage.errors import InvalidError

GROUP_ID_CHARACTERS_MAX = 32_767
METADATA_CHARACTERS_MAX = 4_096
"""Kafka's default of `offset.metadata.max.bytes`. A longer text is left out: the offset counts."""
FIRST_OF_SEVERAL, LAST_BY_NAME = 8, 9
CLASSIC, UNKNOWN_STATE = "classic", "Unknown"


def list_groups(cluster: KafkaCluster, node: int) -> list[SourceGroup]:
    """The groups that a broker coordinates. RetryableError while it loads them, InvalidError if it refuses."""
    m = cluster.message(ApiKey.LIST_GROUPS)
    answer = cluster.ask(ApiKey.LIST_GROUPS, m.request(states_filter=(), types_filter=()), node)
    require(answer.error_code, None, "groups of the source")
    return [
        SourceGroup(
            str(group.group_id),
            str(getattr(group, "group_type", CLASSIC) or CLASSIC).lower()[:TEXT_CHARACTERS_MAX],
            str(group.protocol_type)[:TEXT_CHARACTERS_MAX],
            str(getattr(group, "group_state", UNKNOWN_STATE))[:TEXT_CHARACTERS_MAX],
            node,
        )
        for group in answer.groups
        if 0 < len(group.group_id) <= GROUP_ID_CHARACTERS_MAX and "\0" not in group.group_id
    ]


def fetch_offsets(cluster: KafkaCluster, node: int, group_ids: Sequence[str]) -> dict[str, GroupOffsets]:
    """Return what these groups of one coordinator committed; those that it does not coordinate any more are missing."""
    version = cluster.newest(ApiKey.OFFSET_FETCH, LAST_BY_NAME)
    if version < FIRST_OF_SEVERAL:
        each = ((group_id, _of_one(cluster, node, group_id)) for group_id in group_ids)
        return {group_id: offsets for group_id, offsets in each if offsets is not None}
    m = message(ApiKey.OFFSET_FETCH, version)
    groups = tuple(
        m.make("OffsetFetchRequestGroup", group_id=group_id, member_id=None, member_epoch=-1, topics=None)
        for group_id in group_ids
    )
    answer = cluster.ask_in(m, m.request(groups=groups, require_stable=True), node)
    return {
        str(group.group_id): _offsets(group.topics)
        for group in answer.groups
        if str(group.group_id) in group_ids and _is_answered(group.error_code)
    }


def _of_one(cluster: KafkaCluster, node: int, group_id: str) -> GroupOffsets | None:
    m = cluster.message(ApiKey.OFFSET_FETCH)
    answer = cluster.ask(ApiKey.OFFSET_FETCH, m.request(group_id=group_id, topics=None, require_stable=True), node)
    return _offsets(answer.topics) if _is_answered(answer.error_code) else None


def _is_answered(code: ErrorCode) -> bool:
    """False: ask again later, perhaps another coordinator. InvalidError if it may not be asked."""
    if code is not ErrorCode.none and not code.retriable:
        raise InvalidError(f"the source does not say what a group committed: {code.name}")
    return code is ErrorCode.none


def _offsets(topics: Iterable[Any]) -> dict[TopicIndex, CommittedAt]:
    return {
        (str(topic.name), int(each.partition_index)): CommittedAt(
            int(each.committed_offset), _epoch(each), _text(each.metadata)
        )
        for topic in topics
        if len(topic.name) <= TEXT_CHARACTERS_MAX
        for each in topic.partitions
        if each.error_code is ErrorCode.none and 0 <= each.committed_offset < OFFSET_MAX
    }


def _epoch(partition: Any) -> int:
    epoch = int(getattr(partition, "committed_leader_epoch", -1))
    return epoch if 0 <= epoch < EPOCH_MAX else -1


def _text(metadata: str | None) -> str:
    text = metadata or ""
    return text if len(text) <= METADATA_CHARACTERS_MAX else ""
