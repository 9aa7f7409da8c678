"""One member of a consumer group, as it is stored.

Place: a ../members/member.py, changed by reconcile.py and membership.py, kept by roster.py, written by saved.py.
Invariant: immutable; `assigned` and `to_revoke` are disjoint, and together they are what the member may
be consuming. `to_revoke` is empty unless it is UNREVOKED.
Source: KIP-848 (member epochs).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from headrace.agent.groups.classic.roster import protocols_bytes
from headrace.agent.groups.consumer.consumer_values import ConsumerHeartbeat, MemberState, pattern_of
from headrace.agent.groups.group_values import MemberProtocol
from headrace.agent.groups.members.member import PARTITION_BYTES, GroupMember
from headrace.agent.groups.members.partitions import NOTHING, Partitions
from headrace.agent.limits.client_memory import text_bytes

NO_PARTITIONS: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """The classic side of a member that speaks the classic protocol (JoinGroup, SyncGroup): what that knows and KIP-848
    does not.
    """

    session_timeout: float
    protocols: tuple[MemberProtocol, ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember(GroupMember[ConsumerHeartbeat]):
    """A member of either protocol."""

    rebalance_timeout: float = 0.0
    topic_pattern: str = ""
    assignor: str | None = None
    state: MemberState = MemberState.STABLE
    to_revoke: Partitions = NOTHING
    classic: ClassicSide | None = None
    since: Mapping[int, int] = field(default_factory=lambda: NO_PARTITIONS)
    """Partition key -> the member epoch with which it got a partition that it holds; without those that an agent of an
    earlier release stored."""
    principal: str = ""
    """The principal under which it subscribed to a pattern; empty if ACLs were not enforced."""

    @property
    def subscription_pattern(self) -> str:
        """Its pattern, as topics.py matches it."""
        return pattern_of(self.topic_pattern, self.principal, self.client_host)

    @property
    def may_be_replaced(self) -> bool:
        """Another process may join as the same static member: members of the classic protocol do so at any time."""
        return self.is_away or self.classic is not None

    @property
    def holds(self) -> Partitions:
        """What it may be consuming."""
        return self.assigned | self.to_revoke

    def has_had(self, keys: Collection[int], epoch: int) -> bool:
        """Return whether it was at this epoch, and has held all these partitions ever since."""
        return bool(keys) and epoch < self.epoch and all(key in self.since and self.since[key] <= epoch for key in keys)

    def size_bytes(self) -> int:
        """The memory that it uses, about."""
        texts = text_bytes(self.assignor, self.topic_pattern, self.subscription_pattern, self.principal)
        protocols = protocols_bytes(self.classic.protocols) if self.classic else 0
        partitions = PARTITION_BYTES * (len(self.to_revoke) + len(self.since))
        return GroupMember.size_bytes(self) + texts + partitions + protocols

    def updated_by(self, request: ConsumerHeartbeat) -> ConsumerMember:
        """See GroupMember. It speaks the consumer protocol from now on."""
        updated = GroupMember.updated_by(self, request)
        return updated if updated.classic is None else replace(updated, classic=None)

    def _said_by(self, request: ConsumerHeartbeat) -> dict[str, Any]:
        return GroupMember._said_by(self, request) | {
            "rebalance_timeout": request.rebalance_timeout,
            "topic_pattern": request.topic_pattern,
            "assignor": request.assignor,
            "principal": request.principal,
        }

    def subscribes_as(self, other: ConsumerMember) -> bool:
        """Return whether the other one would be given the same by any assignor that both can ask for."""
        return (self.topic_names, self.subscription_pattern, self.assignor) == (
            other.topic_names,
            other.subscription_pattern,
            other.assignor,
        )

    def back_as(self, member_id: str) -> ConsumerMember:
        """A static member that came back, maybe as another process."""
        return replace(GroupMember.back_as(self, member_id), state=MemberState.STABLE, to_revoke=NOTHING)

    def gone_for_a_while(self) -> ConsumerMember:
        """A static member that left and means to come back: what it was to revoke is free."""
        return replace(GroupMember.gone_for_a_while(self), state=MemberState.STABLE, to_revoke=NOTHING)
