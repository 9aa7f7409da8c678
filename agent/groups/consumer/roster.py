"""The members of a consumer group, and who holds which partition. Pure.

Place: under group.py, which decides when any of this changes.
Invariant: a partition has one holder; an instance id belongs to one member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from headrace.agent.groups.consumer.member import ConsumerMember


class ConsumerRoster(Collection[ConsumerMember]):
    """Members by id, in the order they joined."""

    def __init__(self) -> None:
        self._members: dict[str, ConsumerMember] = {}
        self._static_ids: dict[str, str] = {}
        self._holders: dict[int, str] = {}
        self._patterns: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ConsumerMember]:
        return iter(self._members.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> ConsumerMember | None:
        """The member of that id."""
        return self._members.get(member_id)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """The member that holds the instance id."""
        member_id = self._static_ids.get(instance_id)
        return None if member_id is None else self._members[member_id]

    @property
    def patterns(self) -> list[str]:
        """The topic patterns that members subscribe to, as `pattern_of` in consumer_values.py."""
        return list(self._patterns)

    def holder(self, partition: int) -> str | None:
        """Return who may be consuming the partition."""
        return self._holders.get(partition)

    def put(self, member: ConsumerMember) -> None:
        """Add the member, or replace what was known of it."""
        before = self._members.get(member.member_id)
        if before is not None:
            self._forget(before)
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.member_id
        if member.topic_pattern:
            self._patterns[member.subscription_pattern] += 1
        for partition in member.holds:
            holder = self._holders.setdefault(partition, member.member_id)
            assert holder == member.member_id, f"partition {partition} is held by {holder} and {member.member_id}"

    def remove(self, member: ConsumerMember) -> None:
        """It holds nothing any more."""
        self._forget(member)
        del self._members[member.member_id]

    def _forget(self, member: ConsumerMember) -> None:
        if member.instance_id is not None:
            del self._static_ids[member.instance_id]
        if member.topic_pattern:
            self._patterns -= Counter([member.subscription_pattern])
        for partition in member.holds:
            del self._holders[partition]
