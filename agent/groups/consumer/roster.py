"""The members of a consumer group by what they subscribe to and hold. Pure.

Place: under membership.py, which decides when any of this changes.
Invariant: a partition has one holder; an instance id belongs to one member.
"""

from __future__ import annotations

from collections import Counter

from headrace.agent.groups.consumer.member import ConsumerMember
from headrace.agent.groups.members.roster import MemberRoster


class ConsumerRoster(MemberRoster[ConsumerMember]):
    """Members by id, in the order they joined; and who holds which partition."""

    def __init__(self) -> None:
        super().__init__()
        self._holders: dict[int, str] = {}
        self._patterns: Counter[str] = Counter()

    @property
    def patterns(self) -> list[str]:
        """The topic patterns that members subscribe to, as `pattern_of` in consumer_values.py."""
        return list(self._patterns)

    def holder(self, partition: int) -> str | None:
        """Return who may be consuming the partition."""
        return self._holders.get(partition)

    def _note(self, member: ConsumerMember) -> None:
        super()._note(member)
        if member.topic_pattern:
            self._patterns[member.subscription_pattern] += 1
        for partition in member.holds:
            holder = self._holders.setdefault(partition, member.member_id)
            assert holder == member.member_id, f"partition {partition} is held by {holder} and {member.member_id}"

    def _forget(self, member: ConsumerMember) -> None:
        super()._forget(member)
        if member.topic_pattern:
            self._patterns -= Counter([member.subscription_pattern])
        for partition in member.holds:
            del self._holders[partition]
