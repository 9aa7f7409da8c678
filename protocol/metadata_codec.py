"""The parts of a Metadata response (API key 3, versions 0-13) as bytes, hand-written: there may be 100,000 partitions.

    response_begin · count of topics · each topic (with its partitions) · response_end

Place: under agent/topics/metadata, which makes the parts at different times.
Invariant: the bytes are those that kio writes for the same values (a test compares every version).
Source: Kafka's MetadataResponse.json; KIP-320 (leader epochs, v7), KIP-430 (operations, v8), KIP-516 (topic ids, v10).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Sequence

from headrace.protocol import wire
from headrace.protocol.wire import INT16, INT32

FIRST_FLEXIBLE = 9
_FIRST_RACK, _FIRST_CONTROLLER, _FIRST_CLUSTER_ID, _FIRST_THROTTLE_TIME = 1, 1, 2, 3
_FIRST_INTERNAL, _FIRST_OFFLINE, _FIRST_EPOCH, _FIRST_OPERATIONS, _FIRST_TOPIC_ID = 1, 5, 7, 8, 10
_LAST_CLUSTER_OPERATIONS, _FIRST_ERROR = 10, 13
ShownAgent = tuple[int, str, int, str | None]
"""Node id, host, port, rack."""
_PARTITION = struct.Struct(">hii")
_PARTITION_WITH_EPOCH = struct.Struct(">hiii")


def response_begin(version: int, agents: Sequence[ShownAgent], cluster_id: str, controller_id: int) -> bytes:
    """Return what is before the list of topics. The throttle time is 0 (see protocol/typed.py)."""
    flexible = version >= FIRST_FLEXIBLE
    parts = [INT32.pack(0)] if version >= _FIRST_THROTTLE_TIME else []
    parts.append(wire.size_prefix(len(agents), flexible))
    for node_id, host, port, rack in agents:
        parts += (INT32.pack(node_id), wire.string(host, flexible), INT32.pack(port))
        if version >= _FIRST_RACK:
            parts.append(wire.string(rack, flexible))
        if flexible:
            parts.append(wire.EMPTY_TAGS)
    if version >= _FIRST_CLUSTER_ID:
        parts.append(wire.string(cluster_id, flexible))
    if version >= _FIRST_CONTROLLER:
        parts.append(INT32.pack(controller_id))
    return b"".join(parts)


def replicas(version: int, nodes: Sequence[int], in_sync: Sequence[int], offline: Sequence[int]) -> bytes:
    """Return the end of a partition: its lists of node ids. Many partitions share it."""
    lists = [nodes, in_sync, offline] if version >= _FIRST_OFFLINE else [nodes, in_sync]
    flexible = version >= FIRST_FLEXIBLE
    parts = [wire.size_prefix(len(ids), flexible) + struct.pack(f">{len(ids)}i", *ids) for ids in lists]
    return b"".join(parts) + (wire.EMPTY_TAGS if flexible else b"")


def partitions(version: int, shown: Iterable[tuple[int, int, int, int, bytes]]) -> bytes:
    """Return the elements of a topic's list of partitions, each of (error code, index, leader's node id, leader epoch,
    `replicas`)."""
    if version < _FIRST_EPOCH:
        pack = _PARTITION.pack
        return b"".join([pack(error, index, leader) + end for error, index, leader, _, end in shown])
    pack = _PARTITION_WITH_EPOCH.pack
    return b"".join([pack(error, index, leader, epoch) + end for error, index, leader, epoch, end in shown])


def topic(
    version: int,
    error: int,
    name: str | None,
    topic_id: uuid.UUID | None,
    partition_count: int,
    shown: Iterable[bytes],
    *,
    is_internal: bool,
    operations: int,
) -> bytes:
    """Return one element of the list of topics. `shown`: the partitions' bytes, in order. `name`: None only from v12
    on, in which a topic that was asked for by id may have none."""
    flexible = version >= FIRST_FLEXIBLE
    parts = [INT16.pack(error), wire.string(name, flexible)]
    if version >= _FIRST_TOPIC_ID:
        parts.append((topic_id or wire.NULL_UUID).bytes)
    if version >= _FIRST_INTERNAL:
        parts.append(bytes((is_internal,)))
    parts.append(wire.size_prefix(partition_count, flexible))
    parts += shown
    if version >= _FIRST_OPERATIONS:
        parts.append(INT32.pack(operations))
    if flexible:
        parts.append(wire.EMPTY_TAGS)
    return b"".join(parts)


def response_end(version: int, cluster_operations: int) -> bytes:
    """Return what follows the list of topics, without tagged fields."""
    parts = []
    if _FIRST_OPERATIONS <= version <= _LAST_CLUSTER_OPERATIONS:
        parts.append(INT32.pack(cluster_operations))
    if version >= _FIRST_ERROR:
        parts.append(INT16.pack(0))
    if version >= FIRST_FLEXIBLE:
        parts.append(wire.EMPTY_TAGS)
    return b"".join(parts)
