"""A group changes its kind while its members continue: classic to consumer, and back. Pure.

Place: `from_classic` when a member of the consumer protocol joins a classic group (coordinator.py here),
`to_classic` when the last such member went (membership.py).
Invariant: the conversion itself moves no partition: what a classic leader assigned is the first
target, and the last assignments are what the classic group starts with. The rebalance comes after.
Source: KIP-848 (online migration), Kafka's ConsumerGroup.fromClassicGroup and ClassicGroup.fromConsumerGroup.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.agent.groups.classic.saved import SavedClassicMember, SavedGroup
from headrace.agent.groups.consumer.embedded import PROTOCOL_TYPE, read_assignment, read_subscription, write_assignment
from headrace.agent.groups.consumer.member import ClassicSide, ConsumerMember
from headrace.agent.groups.consumer.topics import KnownTopics
from headrace.agent.groups.group_values import MemberProtocol


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
