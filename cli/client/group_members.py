"""The members of a consumer group, classic or KIP-848, in one form.

Place: under `headrace groups describe`; only reads.
Invariant: the assignment of a classic member is opaque bytes; if it cannot be parsed, it is shown as empty.
"""

from __future__ import annotations

import struct
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.cli.client.cluster import KafkaCluster, require
from headrace.protocol import wire
from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import NotFoundError

MemberRow = dict[str, Any]
_CONSUMER = "consumer"


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
