"""Rows about share groups: a group with a member; and offsets of a group without members.

Place: under cases.py. __main__.py sends `share_groups_in_use` first, so that there is something to hide.
Source: KIP-932, and Kafka's KafkaApis.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from headrace.agent.access.authorization.operations import AclOperation
from headrace.protocol.api_keys import ApiKey
from tests.acl_matrix.case import GROUP_FAILED, SECOND, TOPIC, Case, on_group, on_topic

SHARE_GROUP, SHARE_OFFSETS = "acl-share-group", "acl-share-offsets"
_MEMBER = "m"
_JOIN_EPOCH, _LEAVE_EPOCH = 0, -1
_ACCEPT = 1


def _heartbeat(group: str, epoch: int) -> dict[str, Any]:
    names = [TOPIC] if epoch == _JOIN_EPOCH else None
    return {"group_id": group, "member_id": _MEMBER, "member_epoch": epoch, "subscribed_topic_names": names}


def _alter() -> dict[str, Any]:
    topic = {"topic_name": TOPIC, "partitions": [{"partition_index": 0, "start_offset": 0}]}
    return {"group_id": SHARE_OFFSETS, "topics": [topic]}


def share_groups_in_use() -> list[tuple[ApiKey, Mapping[str, Any]]]:
    """Return the requests that make both groups: a member that stays, and offsets of a group that its member left."""
    return [
        (ApiKey.SHARE_GROUP_HEARTBEAT, _heartbeat(SHARE_GROUP, _JOIN_EPOCH)),
        (ApiKey.SHARE_GROUP_HEARTBEAT, _heartbeat(SHARE_OFFSETS, _JOIN_EPOCH)),
        (ApiKey.SHARE_GROUP_HEARTBEAT, _heartbeat(SHARE_OFFSETS, _LEAVE_EPOCH)),
        (ApiKey.ALTER_SHARE_GROUP_OFFSETS, _alter()),
    ]


def share_cases(topic_id: uuid.UUID) -> list[Case]:
    """Return the rows of the APIs of share groups. The row that deletes offsets is the last one."""
    describe_topic, read_topic = on_topic(AclOperation.DESCRIBE), on_topic(AclOperation.READ)
    read = on_group(AclOperation.READ, SHARE_GROUP)
    return [
        Case(
            "ShareGroupHeartbeat",
            ApiKey.SHARE_GROUP_HEARTBEAT,
            _heartbeat(SHARE_GROUP, _JOIN_EPOCH),
            (*read, *describe_topic),
            GROUP_FAILED,
        ),
        Case(
            "ShareGroupDescribe",
            ApiKey.SHARE_GROUP_DESCRIBE,
            {"group_ids": [SHARE_GROUP], "include_authorized_operations": True},
            (*on_group(AclOperation.DESCRIBE, SHARE_GROUP), *describe_topic),
            GROUP_FAILED,
        ),
        Case("ShareFetch", ApiKey.SHARE_FETCH, _fetch(topic_id), (*read, *read_topic), GROUP_FAILED),
        Case(
            "ShareAcknowledge",
            ApiKey.SHARE_ACKNOWLEDGE,
            _acknowledge(topic_id),
            (*read, *read_topic),
            GROUP_FAILED,
            opening=(ApiKey.SHARE_FETCH, _session() | {"topics": ()}),
        ),
        *_offset_cases(),
    ]


def _session() -> dict[str, Any]:
    """Return the fields of a ShareFetch that opens a session."""
    limits = {"max_wait": SECOND * 0, "min_bytes": 0, "max_bytes": 1000, "max_records": 10, "batch_size": 10}
    return {"group_id": SHARE_GROUP, "member_id": _MEMBER, "share_session_epoch": 0, **limits}


def _fetch(topic_id: uuid.UUID) -> dict[str, Any]:
    return _session() | {"topics": [{"topic_id": topic_id, "partitions": [{"partition_index": 0}]}]}


def _acknowledge(topic_id: uuid.UUID) -> dict[str, Any]:
    """Return an acknowledgement of a record that the member did not acquire, in a session that `_session` opened."""
    batch = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [_ACCEPT]}
    partitions = [{"partition_index": 0, "acknowledgement_batches": [batch]}]
    session = {"group_id": SHARE_GROUP, "member_id": _MEMBER, "share_session_epoch": 1}
    return session | {"topics": [{"topic_id": topic_id, "partitions": partitions}]}


def _offset_cases() -> list[Case]:
    read_topic, describe_topic = on_topic(AclOperation.READ), on_topic(AclOperation.DESCRIBE)
    describe = (*on_group(AclOperation.DESCRIBE, SHARE_OFFSETS), *describe_topic)
    named = [{"topic_name": TOPIC, "partitions": [0]}]
    return [
        Case(
            "DescribeShareGroupOffsets",
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            {"groups": [{"group_id": SHARE_OFFSETS, "topics": named}]},
            describe,
            GROUP_FAILED,
        ),
        Case(
            "DescribeShareGroupOffsets-all",
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            {"groups": [{"group_id": SHARE_OFFSETS, "topics": None}]},
            describe,
            GROUP_FAILED,
            "groups.topics",
        ),
        Case(
            "AlterShareGroupOffsets",
            ApiKey.ALTER_SHARE_GROUP_OFFSETS,
            _alter(),
            (*on_group(AclOperation.READ, SHARE_OFFSETS), *read_topic),
            GROUP_FAILED,
        ),
        Case(
            "DeleteShareGroupOffsets",
            ApiKey.DELETE_SHARE_GROUP_OFFSETS,
            {"group_id": SHARE_OFFSETS, "topics": [{"topic_name": TOPIC}]},
            (*on_group(AclOperation.DELETE, SHARE_OFFSETS), *read_topic),
            GROUP_FAILED,
        ),
    ]
