"""What goes into a consumer group's state machine and what comes out: plain values, no clock, no sockets.

Place: between heartbeat_request.py, which knows fields and topic names, and group.py, which knows the rules.
Partitions are sets of partition keys; times are seconds of the clock's monotonic().
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.assignors.assignor import Partitions

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_A_WHILE_EPOCH = -2
"""A static member goes and means to come back: its partitions wait for it."""


class MemberState(enum.Enum):
    """How far a member has come from what it has to what it is to have."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    """It was asked to give partitions up and has not confirmed it yet."""
    UNRELEASED = "unreleased"
    """Another member still holds partitions that it is to get."""


def pattern_of(topic_pattern: str, principal: str, client_host: str) -> str:
    """A topic pattern of one client: the pattern itself, with the principal and address if ACLs are enforced."""
    return "\0".join((topic_pattern, principal, client_host)) if topic_pattern and principal else topic_pattern


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """ConsumerGroupHeartbeat; None: not sent, so nothing changed."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: float | None = None
    topic_names: frozenset[str] | None = None
    topic_pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    principal: str = ""
    """The principal of the client, if ACLs are enforced: its pattern matches topics that it may describe."""

    @property
    def subscription_pattern(self) -> str:
        """What its pattern matches depends on: see topics.py."""
        return pattern_of(self.topic_pattern or "", self.principal, self.client_host)

    @property
    def is_full(self) -> bool:
        """Sent when joining and after an error: the member asks for its whole assignment."""
        subscribes = self.topic_names is not None or self.topic_pattern is not None
        return self.rebalance_timeout is not None and subscribes and self.owned is not None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatAnswer:
    """`assigned` None: as in the last answer."""

    code: ErrorCode
    member_id: str
    member_epoch: int = 0
    assigned: Partitions | None = None
    message: str | None = None
