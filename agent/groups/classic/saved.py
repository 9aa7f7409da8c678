"""A classic group as it is stored: the last completed generation, so that the next coordinator carries on.

Place: written by each completed rebalance, read when an agent becomes the group's coordinator.
Invariant: it holds complete generations only, every member with its assignment. Fields are added
with defaults, never renumbered; an unknown format is refused.
If the process crashes before it is written, the previous generation is restored, and members join again.
"""

from __future__ import annotations

import msgspec

from headrace.agent.groups.classic.subscriptions import subscribed_topics
from headrace.agent.groups.saved_format import decode_saved
from headrace.metastore.api.groups import GroupKind, GroupRecord

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
