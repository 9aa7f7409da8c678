"""The members of a group. Pure.

Place: under membership.py, which decides when any of this changes. A kind that looks members up by more (who holds a
partition) does so in a subclass.
Invariant: an instance id belongs to one member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeVar

from headrace.agent.groups.members.member import GroupMember

M = TypeVar("M", bound=GroupMember[Any])


class MemberRoster(Collection[M]):
    """Members by id, in the order they joined."""

    def __init__(self) -> None:
        self._members: dict[str, M] = {}
        self._static_ids: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[M]:
        return iter(self._members.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> M | None:
        """The member of that id."""
        return self._members.get(member_id)

    def static_member(self, instance_id: str) -> M | None:
        """The member that holds the instance id."""
        member_id = self._static_ids.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def put(self, member: M) -> None:
        """Add the member, or replace what was known of it."""
        before = self._members.get(member.member_id)
        if before is not None:
            self._forget(before)
        self._members[member.member_id] = member
        self._note(member)

    def remove(self, member: M) -> None:
        """It holds nothing any more."""
        self._forget(member)
        del self._members[member.member_id]

    def _note(self, member: M) -> None:
        """Make the member known by what it has, besides its id."""
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.member_id

    def _forget(self, member: M) -> None:
        """The inverse of `_note`."""
        if member.instance_id is not None:
            del self._static_ids[member.instance_id]
