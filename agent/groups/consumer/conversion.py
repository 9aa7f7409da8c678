"""A group changes its kind while its members continue: classic to consumer, or back. Pure.

Place: `from_classic` when a member of the consumer protocol joins a classic group (coordinator.py here),
`to_classic` when the last such member went (membership.py). Subscription and assignment are the consumer protocol
inside the classic one, what a classic member's opaque bytes say: a classic member is assigned to by the coordinator
(group.py), so the coordinator has to read the one and write the other.
Invariant: the conversion itself moves no partition: what a classic leader assigned is the first target, and the last
assignments are what the classic group starts with. The rebalance comes after. Bytes that are not Kafka's consumer
protocol are None, never half-read.
Source: KIP-848 (online migration), Kafka's ConsumerGroup.fromClassicGroup and ClassicGroup.fromConsumerGroup;
ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0-3.
"""

from __future__ import annotations

import io
import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kio.serial import entity_writer

from headrace.agent.groups.classic.saved import SavedClassicMember, SavedGroup
from headrace.agent.groups.consumer.members import ClassicSide, ConsumerMember
from headrace.agent.groups.consumer.topics import KnownTopics
from headrace.agent.groups.group_values import MemberProtocol
from headrace.agent.groups.members.member import Partitions
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


def from_classic(state: SavedGroup, topics: KnownTopics) -> list[ConsumerMember] | None:
    """The members of a classic group, each with what it was assigned; None when they do not speak Kafka's
    consumer protocol, or two were given the same partition."""
    if state.members and state.protocol_type != PROTOCOL_TYPE:
        return None
    members = [_from_classic(saved, state.generation, topics) for saved in state.members]
    found = [member for member in members if member is not None]
    given = [partition for member in found for partition in member.assigned]
    return found if len(found) == len(members) and len(given) == len(set(given)) else None


def _from_classic(saved: SavedClassicMember, generation: int, topics: KnownTopics) -> ConsumerMember | None:
    protocols = tuple(MemberProtocol(*protocol) for protocol in saved.protocols)
    subscription = read_subscription(protocols)
    assigned = read_assignment(saved.assignment, topics)
    if subscription is None or assigned is None:
        return None
    return ConsumerMember(
        saved.member_id,
        saved.instance_id,
        subscription.rack_id,
        saved.client_id,
        saved.client_host,
        subscription.topic_names,
        rebalance_timeout=saved.rebalance_timeout,
        epoch=generation,
        previous_epoch=generation,
        assigned=assigned,
        classic=ClassicSide(saved.session_timeout, protocols),
    )


def to_classic(members: Iterable[ConsumerMember], generation: int, topics: KnownTopics) -> SavedGroup:
    """The classic group that these members, all of the classic protocol, continue in."""
    saved = [_to_classic(member, member.classic, topics) for member in members if member.classic is not None]
    first = saved[0]
    return SavedGroup(generation, PROTOCOL_TYPE, first.protocols[0][0], first.member_id, saved, owes_rebalance=True)


def _to_classic(member: ConsumerMember, classic: ClassicSide, topics: KnownTopics) -> SavedClassicMember:
    return SavedClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        classic.session_timeout,
        member.rebalance_timeout,
        [(protocol.name, protocol.metadata) for protocol in classic.protocols],
        write_assignment(classic.protocols, member.assigned, topics),
    )
