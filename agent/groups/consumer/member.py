"""One member of a consumer group, as it is stored.

Place: changed by reconcile.py and group.py, kept by roster.py, written by saved.py.
Invariant: immutable; `assigned` and `to_revoke` are disjoint, and together they are what the member may
be consuming. `to_revoke` is empty unless it is UNREVOKED.
Source: KIP-848 (member epochs).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from headrace.agent.groups.classic.roster import protocols_bytes
from headrace.agent.groups.consumer.assignors.assignor import NOTHING, Partitions
from headrace.agent.groups.consumer.consumer_values import (
    LEAVE_FOR_A_WHILE_EPOCH,
    HeartbeatRequest,
    MemberState,
    pattern_of,
)
from headrace.agent.groups.group_memory import MEMBER_BYTES
from headrace.agent.groups.group_values import MemberProtocol
from headrace.agent.limits.client_memory import text_bytes

T = TypeVar("T")

NO_PARTITIONS: Mapping[int, int] = MappingProxyType({})

_PARTITION_BYTES = 64
_NAME_BYTES = 16
"""Bytes of a name or a partition in a set, besides the text of a name."""


def names_bytes(names: Iterable[str]) -> int:
    """Return the size of a member's subscription by names."""
    return sum(_NAME_BYTES + text_bytes(name) for name in names)


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """The classic side of a member that speaks the classic protocol (JoinGroup, SyncGroup): what that knows and KIP-848
    does not.
    """

    session_timeout: float
    protocols: tuple[MemberProtocol, ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """`epoch` is the last target that the member was brought to; it shows it in every request."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: float = 0.0
    topic_names: frozenset[str] = frozenset()
    topic_pattern: str = ""
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    """Shown by a member that missed the answer which brought it to `epoch`."""
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NOTHING
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
    def is_away(self) -> bool:
        """A static member that left and may come back within its session."""
        return self.epoch == LEAVE_FOR_A_WHILE_EPOCH

    @property
    def holds(self) -> Partitions:
        """What it may be consuming."""
        return self.assigned | self.to_revoke

    def has_had(self, keys: Collection[int], epoch: int) -> bool:
        """Return whether it was at this epoch, and has held all these partitions ever since."""
        return bool(keys) and epoch < self.epoch and all(key in self.since and self.since[key] <= epoch for key in keys)

    def size_bytes(self) -> int:
        """The memory that it uses, about."""
        texts = text_bytes(self.member_id, self.instance_id, self.rack_id, self.client_id, self.assignor)
        patterns = text_bytes(self.topic_pattern, self.subscription_pattern, self.principal)
        protocols = protocols_bytes(self.classic.protocols) if self.classic else 0
        partitions = _PARTITION_BYTES * (len(self.assigned) + len(self.to_revoke) + len(self.since))
        return MEMBER_BYTES + texts + patterns + names_bytes(self.topic_names) + partitions + protocols

    def at_epoch(self, epoch: int) -> ConsumerMember:
        """Brought to another epoch."""
        return self if epoch == self.epoch else replace(self, epoch=epoch, previous_epoch=self.epoch)

    def updated_by(self, request: HeartbeatRequest) -> ConsumerMember:
        """Return the member with what the request changes; an equal member if that is nothing."""
        return replace(
            self,
            instance_id=_new(request.instance_id, self.instance_id),
            rack_id=_new(request.rack_id, self.rack_id),
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout=_new(request.rebalance_timeout, self.rebalance_timeout),
            topic_names=_new(request.topic_names, self.topic_names),
            topic_pattern=_new(request.topic_pattern, self.topic_pattern),
            assignor=_new(request.assignor, self.assignor),
            classic=None,
            principal=request.principal,
        )

    def subscribes_as(self, other: ConsumerMember) -> bool:
        """Return whether the other one would be given the same by any assignor that both can ask for."""
        return (self.topic_names, self.subscription_pattern, self.assignor) == (
            other.topic_names,
            other.subscription_pattern,
            other.assignor,
        )


def _new(sent: T | None, known: T) -> T:
    return known if sent is None else sent
