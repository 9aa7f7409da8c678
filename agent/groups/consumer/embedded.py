"""The consumer protocol inside the classic one: what a classic member's opaque bytes say, both ways. Pure.

Place: under classic_members.py and conversion.py: a classic member is assigned to by the coordinator,
so the coordinator has to read its subscription and write its assignment.
Invariant: bytes that are not Kafka's consumer protocol are None, never half-read.
Source: ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0-3.
"""

from __future__ import annotations

import io
import struct
from collections import defaultdict
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kio.serial import entity_writer

from headrace.agent.groups.consumer.topics import KnownTopics
from headrace.agent.groups.group_values import MemberProtocol
from headrace.agent.groups.members.partitions import Partitions
from headrace.metastore.keys import split_partition_key
from headrace.protocol.entity_reader import entity_reader
from headrace.protocol.wire import MALFORMED

PROTOCOL_TYPE = "consumer"
_NEWEST = 3
_VERSION = struct.Struct(">h")
_FIRST_WITH_OWNED_PARTITIONS = 1
_FIRST_WITH_RACK = 3


@dataclass(frozen=True, slots=True)
class Subscription:
    """`owned`: names and indexes, as the member wrote them."""

    topic_names: frozenset[str]
    owned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    rack_id: str | None = None


def read_subscription(protocols: tuple[MemberProtocol, ...]) -> Subscription | None:
    """Read the subscription, of the protocol that the member likes best, as Kafka does: all of them carry the same."""
    if not protocols:
        return None
    entity = _read("subscription", protocols[0].metadata)
    if entity is None:
        return None
    version = entity.__version__
    owned = entity.owned_partitions if version >= _FIRST_WITH_OWNED_PARTITIONS else ()
    return Subscription(
        frozenset(entity.topics),
        tuple((each.topic, tuple(each.partitions)) for each in owned),
        entity.rack_id if version >= _FIRST_WITH_RACK else None,
    )


def write_assignment(protocols: tuple[MemberProtocol, ...], partitions: Partitions, topics: KnownTopics) -> bytes:
    """Write the assignment in the version of the member's subscription; a topic that is gone is left out."""
    version = min(*_VERSION.unpack_from(protocols[0].metadata), _NEWEST)
    by_name: defaultdict[str, list[int]] = defaultdict(list)
    for key in sorted(partitions):
        number, index = split_partition_key(key)
        if number in topics.by_number:
            by_name[topics.by_number[number].name].append(index)
    module = import_module(f"kio.schema.consumer_protocol_assignment.v{version}.data")
    assigned = tuple(module.TopicPartition(topic=name, partitions=tuple(by_name[name])) for name in by_name)
    body = io.BytesIO(_VERSION.pack(version))
    body.seek(_VERSION.size)
    entity_writer(module.ConsumerProtocolAssignment)(
        body, module.ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=None)
    )
    return body.getvalue()


def read_assignment(data: bytes, topics: KnownTopics) -> Partitions | None:
    """Return what a classic leader gave a member; none for a member that got no bytes."""
    if not data:
        return frozenset()
    entity = _read("assignment", data)
    if entity is None:
        return None
    return keys(((each.topic, tuple(each.partitions)) for each in entity.assigned_partitions), topics)


def keys(named: Any, topics: KnownTopics) -> Partitions:
    """Keys of (topic name, partition indexes); what is not there is left out."""
    found = ((topics.by_name.get(name), indexes) for name, indexes in named)
    each = (topic.key(index) for topic, indexes in found if topic is not None for index in indexes)
    return frozenset(key for key in each if key is not None)


def _read(what: str, data: bytes) -> Any:
    """The entity, of the newest version that both sides know; None when the bytes are not one."""
    try:
        (version,) = _VERSION.unpack_from(data)
        if version < 0:
            return None
        module = import_module(f"kio.schema.consumer_protocol_{what}.v{min(version, _NEWEST)}.data")
        entity, _ = entity_reader(getattr(module, f"ConsumerProtocol{what.capitalize()}"))(
            memoryview(data), _VERSION.size
        )
    except (*MALFORMED, OverflowError):
        return None
    return entity
