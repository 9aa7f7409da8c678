"""What a share group knows of its members and of the topics: plain values, no clock, no sockets.

Place: under membership.py and coordinator.py; ../members/member_values.py has what members say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.agent.groups.members.member import GroupMember
from headrace.agent.groups.members.member_values import MemberHeartbeat
from headrace.agent.limits.client_memory import text_bytes


@dataclass(frozen=True, slots=True)
class ShareMember(GroupMember[MemberHeartbeat]):
    """A member of a share group is what all kinds have; `assigned` is its part of the target."""

    def size_bytes(self) -> int:
        """The memory that it uses, about."""
        return GroupMember.size_bytes(self) + text_bytes(self.client_host)


class ShareTopics(NamedTuple):
    """The cluster's topics as of one image: `numbers` by name, and the keys of all partitions of each number."""

    source: Mapping[str, object]
    """The same object as long as no topic came, went or changed its partitions."""
    numbers: Mapping[str, int]
    partitions: Mapping[int, Sequence[int]]
