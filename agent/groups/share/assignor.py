"""Decides which partitions each member of a share group reads: Kafka's `simple` assignor.

Place: asked by membership.py for each target. Pure and deterministic.
Invariant: every partition is given to a member that subscribes to its topic. If there are more members than
partitions, several members share one. Members that subscribe to the same topics get about equally many.
Source: KIP-932; Kafka's SimpleAssignor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

NAME = "simple"


def assign(
    subscriptions: Mapping[str, frozenset[int]], partitions: Mapping[int, Sequence[int]]
) -> dict[str, frozenset[int]]:
    """`subscriptions`: member id -> topic numbers; `partitions`: topic number -> keys. Member id -> keys."""
    subscribers: defaultdict[int, list[str]] = defaultdict(list)
    for member_id in sorted(subscriptions):
        for number in subscriptions[member_id]:
            subscribers[number].append(member_id)
    shared: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for number in sorted(subscribers):
        shared[tuple(subscribers[number])] += partitions.get(number, ())
    given: dict[str, set[int]] = {member_id: set() for member_id in subscriptions}
    for members, keys in shared.items():
        for at in range(max(len(members), len(keys)) if keys else 0):
            given[members[at % len(members)]].add(keys[at % len(keys)])
    return {member_id: frozenset(keys) for member_id, keys in given.items()}
