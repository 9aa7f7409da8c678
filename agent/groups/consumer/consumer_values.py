"""What goes into a consumer group's state machine and what comes out: plain values, no clock, no sockets.

Place: between heartbeat_request.py, which knows fields and topic names, and group.py, which knows the rules.
../members/member_values.py has what all kinds say.
Partitions are sets of partition keys; times are seconds of the clock's monotonic().
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.agent.groups.members.member_values import MemberHeartbeat
from headrace.agent.groups.members.partitions import Partitions


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


OwnedTopics = Sequence[tuple[uuid.UUID, Sequence[int]]]
"""(topic id, partition indexes), as a member names what it owns."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat(MemberHeartbeat):
    """ConsumerGroupHeartbeat; None: not sent, so nothing changed."""

    rebalance_timeout: float | None = None
    topic_pattern: str | None = None
    assignor: str | None = None
    owned_topics: OwnedTopics | None = None
    """What the member owns, as it names it; coordinator.py makes `owned` of it."""
    owned: Partitions | None = None
    principal: str = ""
    """The principal of the client, if ACLs are enforced: its pattern matches topics that it may describe."""

    @property
    def subscription_pattern(self) -> str:
        """What its pattern matches depends on: see topics.py."""
        return pattern_of(self.topic_pattern or "", self.principal, self.client_host)

    @property
    def subscribes(self) -> bool:
        """It says what the member subscribes to."""
        return self.topic_names is not None or self.topic_pattern is not None

    @property
    def is_full(self) -> bool:
        """Sent when joining and after an error: the member asks for its whole assignment."""
        return self.rebalance_timeout is not None and self.subscribes and self.owned is not None
