"""What goes into a share group's state machine and what comes out: plain values, no clock, no sockets.

Place: between heartbeat_request.py, which knows fields and topic names, and group.py, which knows the rules.
Partitions are sets of partition keys; times are seconds of the clock's monotonic().
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.groups.group_memory import MEMBER_BYTES
from headrace.agent.limits.client_memory import text_bytes

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
_PARTITION_BYTES = 64
_NAME_BYTES = 16


@dataclass(frozen=True, slots=True)
class ShareHeartbeatRequest:
    """ShareGroupHeartbeat; None: not sent, so nothing changed."""

    member_id: str
    member_epoch: int
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ShareHeartbeatAnswer:
    """`assigned` None: as in the last answer."""

    code: ErrorCode
    member_id: str
    member_epoch: int = 0
    assigned: frozenset[int] | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ShareMember:
    """One member as it is stored. `previous_epoch` is shown by one that missed the last answer."""

    member_id: str
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: frozenset[str]
    epoch: int = 0
    previous_epoch: int = 0
    assigned: frozenset[int] = frozenset()

    def size_bytes(self) -> int:
        """The memory that it uses, about."""
        texts = text_bytes(self.member_id, self.rack_id, self.client_id, self.client_host)
        names = sum(_NAME_BYTES + text_bytes(name) for name in self.topic_names)
        return MEMBER_BYTES + texts + names + _PARTITION_BYTES * len(self.assigned)


class ShareTopics(NamedTuple):
    """The cluster's topics as of one image: `numbers` by name, and the keys of all partitions of each number."""

    source: object
    """The same object as long as no topic came, went or changed its partitions."""
    numbers: Mapping[str, int]
    partitions: Mapping[int, Sequence[int]]
