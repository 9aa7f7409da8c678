"""A consumer group as it is stored: everything that its next coordinator needs to carry on.

Place: written by each change of membership.py, read when an agent becomes the group's coordinator.
Invariant: fields are added with defaults, never renumbered; an unknown format is refused. Partitions are
kept per topic number, so a group of 10,000 partitions takes some 60 KB.
No member learns of a change before it is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from headrace.agent.groups.consumer.members import ClassicSide, ConsumerMember
from headrace.agent.groups.coordinated import decode_saved
from headrace.agent.groups.group_values import MemberProtocol
from headrace.agent.groups.members.member import Partitions, PartitionsByTopic, by_topic, from_topics
from headrace.agent.groups.members.reconciliation import MemberState
from headrace.metastore.api.groups import GroupKind, GroupRecord

FORMAT = 1
PROTOCOL_TYPE = "consumer"


class SavedConsumerMember(msgspec.Struct, frozen=True):
    """Timeouts in seconds; `target` is its part of the target assignment."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: float
    topic_names: list[str]
    topic_pattern: str
    assignor: str | None
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: PartitionsByTopic
    to_revoke: PartitionsByTopic
    target: PartitionsByTopic
    classic: tuple[float, list[tuple[str, bytes]]] | None = None
    """Session timeout, and protocols in order of preference."""
    principal: str = ""
    since: dict[int, PartitionsByTopic] = {}
    """Member epoch -> the partitions that it has had since then."""


class SavedConsumerGroup(msgspec.Struct, frozen=True):
    """`members` in the order they joined. `topics_digest`: of the topics that the target was judged by.

    `opened`: child key -> the boundary of its parent that the group has passed (topics.py).
    """

    group_epoch: int
    target_epoch: int
    topics_digest: bytes
    state_name: str
    subscribed: list[str]
    members: list[SavedConsumerMember]
    format: int = FORMAT
    opened: dict[int, int] = {}

    def record(self) -> GroupRecord:
        """Return it as the metastore keeps it, and what it may tell without opening it."""
        data = msgspec.msgpack.encode(self)
        return GroupRecord(GroupKind.CONSUMER, self.state_name, PROTOCOL_TYPE, tuple(self.subscribed), data)


def decode(data: bytes) -> SavedConsumerGroup:
    """CorruptError, or InvalidError for a newer format."""
    return decode_saved(data, SavedConsumerGroup, "consumer group", FORMAT)


def save_member(member: ConsumerMember, target: Partitions) -> SavedConsumerMember:
    """Return it in its stored form."""
    classic = member.classic
    return SavedConsumerMember(
        member.member_id,
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout,
        sorted(member.topic_names),
        member.topic_pattern,
        member.assignor,
        member.epoch,
        member.previous_epoch,
        member.state,
        by_topic(member.assigned),
        by_topic(member.to_revoke),
        by_topic(target),
        None if classic is None else (classic.session_timeout, [(p.name, p.metadata) for p in classic.protocols]),
        member.principal,
        _by_epoch(member.since),
    )


def load_member(saved: SavedConsumerMember) -> tuple[ConsumerMember, Partitions]:
    """The member and its part of the target."""
    classic = None
    if saved.classic is not None:
        classic = ClassicSide(saved.classic[0], tuple(MemberProtocol(*protocol) for protocol in saved.classic[1]))
    member = ConsumerMember(
        saved.member_id,
        saved.instance_id,
        saved.rack_id,
        saved.client_id,
        saved.client_host,
        frozenset(saved.topic_names),
        saved.epoch,
        saved.previous_epoch,
        from_topics(saved.assigned),
        rebalance_timeout=saved.rebalance_timeout,
        topic_pattern=saved.topic_pattern,
        assignor=saved.assignor,
        state=saved.state,
        to_revoke=from_topics(saved.to_revoke),
        classic=classic,
        since={key: epoch for epoch, topics in saved.since.items() for key in from_topics(topics)},
        principal=saved.principal,
    )
    return member, from_topics(saved.target)


def _by_epoch(since: Mapping[int, int]) -> dict[int, PartitionsByTopic]:
    keys: defaultdict[int, set[int]] = defaultdict(set)
    for key, epoch in since.items():
        keys[epoch].add(key)
    return {epoch: by_topic(frozenset(keys[epoch])) for epoch in sorted(keys)}
