"""A heartbeat of a member that has an epoch, and its answer: plain values, no clock, no sockets.

Place: between the handlers of the heartbeats, which know fields and topic names, and member_group.py, which knows the
rules. A kind of group with more fields adds them in a subclass.
"""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from headrace.agent.groups.members.partitions import Partitions

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_A_WHILE_EPOCH = -2
"""A static member goes and means to come back: its partitions wait for it."""


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """What each kind's heartbeat says; None: not sent, so nothing changed."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] | None = None

    @property
    def joins(self) -> bool:
        """The member is new, or begins again."""
        return self.member_epoch == JOIN_EPOCH

    @property
    def subscribes(self) -> bool:
        """It says what the member subscribes to."""
        return self.topic_names is not None

    @property
    def is_full(self) -> bool:
        """Sent when joining and after an error: the member asks for its whole assignment."""
        return self.subscribes


@dataclass(frozen=True, slots=True)
class MemberHeartbeatAnswer:
    """`assigned` None: as in the last answer."""

    code: ErrorCode
    member_id: str
    member_epoch: int = 0
    assigned: Partitions | None = None
    message: str | None = None
