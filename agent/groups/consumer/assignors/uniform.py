"""The assignor `uniform`: the same number of partitions for each member, and as few moves as that allows.

Place: one of the choices of target.py, and the default.
Invariant: with equal subscriptions, members differ by one partition at most, and a member loses only
what it has beyond its share. With different subscriptions, levelling.py brings members as close
together as their subscriptions allow.
Source: KIP-848, Kafka's UniformAssignor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.agent.groups.consumer.assignors.assignor import Partitions, Subscriber, partitions_of
from headrace.agent.groups.consumer.assignors.levelling import level


def assign_uniformly(members: Sequence[Subscriber], topics: Mapping[int, int]) -> dict[str, Partitions]:
    """An Assignor."""
    if all(member.topics == members[0].topics for member in members):
        wanted = members[0].topics if members else frozenset()
        return _share(members, {number: count for number, count in topics.items() if number in wanted})
    return level(members, topics)


def _share(members: Sequence[Subscriber], topics: Mapping[int, int]) -> dict[str, Partitions]:
    """All members subscribe to all of `topics`."""
    if not members:
        return {}
    partitions = partitions_of(topics)
    valid = frozenset(partitions)
    share, larger_shares = divmod(len(partitions), len(members))
    kept: dict[str, list[int]] = {}
    taken: set[int] = set()
    # Who has more keeps the larger share, so that nothing moves for the remainder's sake.
    still_there = {member.member_id: member.had & valid for member in members}
    for member in sorted(members, key=lambda m: (-len(still_there[m.member_id]), m.member_id)):
        had = sorted(still_there[member.member_id] - taken)
        quota = share + (larger_shares > 0 and len(had) > share)
        larger_shares -= quota > share
        kept[member.member_id] = had[:quota]
        taken.update(had[:quota])
    free = iter([key for key in partitions if key not in taken])
    given: dict[str, Partitions] = {}
    for member in members:
        own = kept[member.member_id]
        quota = share
        if len(own) > share:
            quota = len(own)
        elif larger_shares > 0:
            larger_shares -= 1
            quota = share + 1
        given[member.member_id] = frozenset([*own, *(next(free) for _ in range(quota - len(own)))])
    return given
