"""One member that has an epoch, as it is stored.

Place: kept by roster.py, changed by membership.py and the kind's rules. A kind with more fields adds them in
a subclass.
Invariant: immutable. With slots, a subclass names this class where it calls it: `super()` finds no dataclass.
Source: KIP-848 (member epochs).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

from headrace.agent.groups.group_memory import MEMBER_BYTES
from headrace.agent.groups.members.member_values import LEAVE_FOR_A_WHILE_EPOCH, MemberHeartbeat
from headrace.agent.groups.members.partitions import NOTHING, Partitions
from headrace.agent.limits.client_memory import text_bytes

H = TypeVar("H", bound=MemberHeartbeat)
PARTITION_BYTES = 64
_NAME_BYTES = 16
"""Bytes of a name or a partition in a set, besides the text of a name."""


def names_bytes(names: Iterable[str]) -> int:
    """Return the size of a member's subscription by names."""
    return sum(_NAME_BYTES + text_bytes(name) for name in names)


@dataclass(frozen=True, slots=True)
class GroupMember(Generic[H]):
    """`epoch` is the last target that the member was brought to; it shows it in every request."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    epoch: int = 0
    previous_epoch: int = 0
    """Shown by a member that missed the answer which brought it to `epoch`."""
    assigned: Partitions = NOTHING

    @property
    def is_away(self) -> bool:
        """A static member that left and may come back within its session."""
        return self.epoch == LEAVE_FOR_A_WHILE_EPOCH

    @property
    def may_be_replaced(self) -> bool:
        """Another process may join as the same static member."""
        return self.is_away

    @property
    def holds(self) -> Partitions:
        """What it may be consuming."""
        return self.assigned

    def size_bytes(self) -> int:
        """The memory that it uses, about."""
        texts = text_bytes(self.member_id, self.instance_id, self.rack_id, self.client_id)
        return MEMBER_BYTES + texts + names_bytes(self.topic_names) + PARTITION_BYTES * len(self.assigned)

    def at_epoch(self, epoch: int) -> Self:
        """Brought to another epoch."""
        return self if epoch == self.epoch else replace(self, epoch=epoch, previous_epoch=self.epoch)

    def updated_by(self, request: H) -> Self:
        """Return the member with what its heartbeat changes; itself if that is nothing, as in most of them."""
        said = self._said_by(request).items()
        changed = {name: value for name, value in said if value is not None and value != getattr(self, name)}
        return replace(self, **changed) if changed else self

    def _said_by(self, request: H) -> dict[str, Any]:
        """The fields that a heartbeat says; None: not sent."""
        return {
            "instance_id": request.instance_id,
            "rack_id": request.rack_id,
            "client_id": request.client_id,
            "client_host": request.client_host,
            "topic_names": request.topic_names,
        }

    def back_as(self, member_id: str) -> Self:
        """A static member that came back, maybe as another process."""
        return replace(self, member_id=member_id, epoch=0, previous_epoch=0)

    def gone_for_a_while(self) -> Self:
        """A static member that left and means to come back."""
        return replace(self, epoch=LEAVE_FOR_A_WHILE_EPOCH)
