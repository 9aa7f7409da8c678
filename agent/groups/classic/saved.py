"""A classic group as it is stored: the last completed generation, so that the next coordinator carries on.

Place: written by each completed rebalance, read when an agent becomes the group's coordinator. What a classic
consumer says it subscribes to (the head of its embedded protocol's bytes) tells which offsets of a group are in use;
nothing in a rebalance depends on it.
Invariant: it holds complete generations only, every member with its assignment. Fields are added
with defaults, never renumbered; an unknown format is refused. Bytes that are not Kafka's consumer protocol mean "not
known", never "none".
If the process crashes before it is written, the previous generation is restored, and members join again.
Source: ConsumerProtocolSubscription, versions 0-3: int16 version, then an array of topics' names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from headrace.agent.groups.coordinated import decode_saved
from headrace.agent.groups.group_values import CONSUMER
from headrace.metastore.api.groups import GroupKind, GroupRecord


def subscribed_topics(protocol_type: str | None, metadata: Iterable[bytes | None]) -> frozenset[str] | None:
    """The topics of all members together; None when it cannot be known."""
    if protocol_type != CONSUMER:
        return None
    try:
        return frozenset(topic for each in metadata for topic in _topics(each or b""))
    except (struct.error, UnicodeDecodeError, ValueError):
        return None


def _topics(metadata: bytes) -> Iterable[str]:
    version, count = struct.unpack_from(">hi", metadata)
    if version < 0 or not 0 <= count <= len(metadata):
        raise ValueError(f"not a consumer's subscription: version={version} topics={count}")
    at = 6
    for _ in range(count):
        (length,) = struct.unpack_from(">h", metadata, at)
        at += 2
        if length < 0 or at + length > len(metadata):
            raise ValueError(f"topic's name ends after the subscription: length={length}")
        topic = metadata[at : at + length].decode()
        if "\0" in topic:
            raise ValueError("no topic has such a name")
        yield topic
        at += length


FORMAT = 1


class SavedClassicMember(msgspec.Struct, frozen=True):
    """Timeouts in seconds; `protocols` in the member's order of preference."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocols: list[tuple[str, bytes]]
    assignment: bytes


class SavedGroup(msgspec.Struct, frozen=True):
    """`members` in the order they joined; none for an empty group, and while the first members gather."""

    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader_id: str | None
    members: list[SavedClassicMember]
    gathering: bool = False
    owes_rebalance: bool = False
    """The members were a consumer group's: they have to join again before this generation means anything."""
    format: int = FORMAT

    def record(self) -> GroupRecord:
        """Return it as the metastore keeps it, and what it may tell without opening it."""
        state = "Stable" if self.members else "PreparingRebalance" if self.gathering else "Empty"
        return GroupRecord(GroupKind.CLASSIC, state, self.protocol_type or "", self.subscribed(), encode(self))

    def find_instance(self, instance_id: str) -> SavedClassicMember | None:
        """The static member of that id."""
        return next((member for member in self.members if member.instance_id == instance_id), None)

    def subscribed(self) -> tuple[str, ...] | None:
        """Topics of all members; None when one's subscription is not Kafka's, and before there is a generation."""
        if self.gathering:
            return None
        metadata = [dict(member.protocols).get(self.protocol_name or "") for member in self.members]
        topics = subscribed_topics(self.protocol_type, metadata)
        return None if topics is None else tuple(sorted(topics))


def encode(state: SavedGroup) -> bytes:
    """MessagePack."""
    return msgspec.msgpack.encode(state)


def decode(data: bytes) -> SavedGroup:
    """CorruptError, or InvalidError for a newer format."""
    return decode_saved(data, SavedGroup, "group", FORMAT)
