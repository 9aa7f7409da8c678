"""The assignor `range`: each topic's partitions in order, one run of neighbours per subscriber.

Place: one of the choices of target.py.
Invariant: topics with the same subscribers and partition counts are split at the same places, so
partition i of each goes to the same member (co-partitioning). Runs differ by one at most. Members
are ordered by instance id, static ones first, so a static member that comes back gets the place that
it had. That order is the only stickiness.
Source: KIP-848, Kafka's RangeAssignor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.agent.groups.consumer.assignors.assignor import Subscriber
from headrace.agent.groups.members.partitions import Partitions
from headrace.metastore.keys import partition_key


def assign_ranges(members: Sequence[Subscriber], topics: Mapping[int, int]) -> dict[str, Partitions]:
    """An Assignor."""
    given: dict[str, set[int]] = {member.member_id: set() for member in members}
    ordered = sorted(members, key=lambda member: (member.instance_id is None, member.instance_id or member.member_id))
    for number, count in topics.items():
        subscribers = [member for member in ordered if number in member.topics]
        if not subscribers:
            continue
        shortest, longer = divmod(count, len(subscribers))
        first = 0
        for place, member in enumerate(subscribers):
            end = first + shortest + (place < longer)
            given[member.member_id].update(partition_key(number, index) for index in range(first, end))
            first = end
    return {member_id: frozenset(partitions) for member_id, partitions in given.items()}
