"""The server-side assignors of consumer groups: which member reads which partitions.

Place: under membership.py, which calls the one that most members ask for; `uniform` is the default. `assign_apart`
is around either: it assigns a topic's usual partitions and those apart evenly, each by itself. A partition that is
marked for deletion gets no new records: a member with many of them, and few of the others, would have little to do.
And of a topic that doubles, some children may be read and others not yet (topics.py).
Invariant: pure and deterministic: the same members, topics and earlier target give the same answer,
whichever agent computes it. Every partition of a subscribed topic goes to exactly one subscriber. Assignors see
partitions without gaps: those apart of a topic are numbered from 0 for them.
`range`: each topic's partitions in order, one run of neighbours per subscriber. Topics with the same subscribers and
partition counts are split at the same places, so partition i of each goes to the same member (co-partitioning). Runs
differ by one at most. Members are ordered by instance id, static ones first, so a static member that comes back gets
the place that it had. That order is the only stickiness.
`uniform`: with equal subscriptions, members differ by one partition at most, and a member loses only
what it has beyond its share. With different subscriptions, `level` brings members as close
together as their subscriptions allow: keep what is still valid, hand what is free to the least loaded subscriber
(the topics with the fewest subscribers first), then level: while some member has at least two partitions more than
one that can be reached from it, shift a partition along the path, from topic to topic. Without such a path no
assignment is more even (optimal semi-matching: no cost-reducing path). A shift takes one partition from the most
loaded end and moves nothing else than the path, so what need not move stays. Each search of `relief` is
O(subscriptions); there are as many as partitions that must move.
Source: KIP-848 (server-side assignors), Kafka's RangeAssignor and UniformAssignor; KIP-253, change 6.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from headrace.agent.groups.members.member import NOTHING, Partitions
from headrace.metastore.keys import partition_key, split_partition_key


class Subscriber(NamedTuple):
    """A member as an assignor sees it; `had` is its part of the last target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[int]
    """Topic numbers."""
    had: Partitions = NOTHING


Assignor = Callable[[Sequence[Subscriber], Mapping[int, int]], dict[str, Partitions]]
"""(members, topic number -> partition count) -> member id -> its partitions; every member is in it."""


def partitions_of(topics: Mapping[int, int]) -> list[int]:
    """Every partition key, topic by topic in order."""
    firsts = [(partition_key(number, 0), topics[number]) for number in sorted(topics)]
    return [key for first, count in firsts for key in range(first, first + count)]  # neighbours have neighbouring keys


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


def level(members: Sequence[Subscriber], topics: Mapping[int, int]) -> dict[str, Partitions]:
    """An Assignor."""
    board = _Board(members, topics)
    board.keep()
    board.hand_out()
    while path := board.relief():
        board.shift(path)
    return {member_id: frozenset().union(*owned.values()) for member_id, owned in board.owned.items()}


class _Board:
    """Board of members and their partitions while they are levelled."""

    def __init__(self, members: Sequence[Subscriber], topics: Mapping[int, int]) -> None:
        self._members = sorted(members, key=lambda member: member.member_id)
        self._topics = topics
        self._subscribers: dict[int, list[str]] = {number: [] for number in topics}
        self.owned: dict[str, dict[int, set[int]]] = {}
        """Member id -> topic number -> partition keys; no empty sets."""
        self._load: dict[str, int] = {}
        for member in self._members:
            self.owned[member.member_id] = {}
            self._load[member.member_id] = 0
            for number in sorted(member.topics & topics.keys()):
                self._subscribers[number].append(member.member_id)

    def keep(self) -> None:
        """Each member keeps what exists and it subscribes to; of two that claim a partition, the first."""
        taken: set[int] = set()
        for member in self._members:
            for key in sorted(member.had):
                number, index = split_partition_key(key)
                if number in member.topics and index < self._topics.get(number, 0) and key not in taken:
                    taken.add(key)
                    self._give(member.member_id, number, key)

    def hand_out(self) -> None:
        """An unassigned partition goes to the least loaded member that subscribes to its topic."""
        taken = {key for owned in self.owned.values() for keys in owned.values() for key in keys}
        for number in sorted(self._topics, key=lambda number: (len(self._subscribers[number]), number)):
            waiting = [(self._load[member_id], member_id) for member_id in self._subscribers[number]]
            heapq.heapify(waiting)
            for index in range(self._topics[number] if waiting else 0):
                if (key := partition_key(number, index)) not in taken:
                    load, member_id = waiting[0]
                    self._give(member_id, number, key)
                    heapq.heapreplace(waiting, (load + 1, member_id))

    def relief(self) -> list[tuple[str, int, str]]:
        """Steps (from, topic, to), with ends that differ by two or more; [] when no member can be relieved.

        The searches share what they have seen: a member that was reached without success from a higher load is no
        relief for a lower one, nor is any member behind it.
        """
        came_by: dict[str, tuple[str, int, str] | None] = {}
        seen_topics: set[int] = set()
        for source in sorted(self._load, key=lambda member_id: (-self._load[member_id], member_id)):
            if source not in came_by:
                came_by[source] = None
                if path := self._relief_of(source, came_by, seen_topics):
                    return path
        return []

    def _relief_of(
        self, source: str, came_by: dict[str, tuple[str, int, str] | None], seen_topics: set[int]
    ) -> list[tuple[str, int, str]]:
        queue = deque([source])
        while queue:
            giver = queue.popleft()
            for number in sorted(self.owned[giver].keys() - seen_topics):
                seen_topics.add(number)
                for taker in self._subscribers[number]:
                    if taker in came_by:
                        continue
                    came_by[taker] = (giver, number, taker)
                    if self._load[taker] <= self._load[source] - 2:
                        return self._steps(came_by, taker)
                    queue.append(taker)
        return []

    @staticmethod
    def _steps(came_by: Mapping[str, tuple[str, int, str] | None], last: str) -> list[tuple[str, int, str]]:
        steps: list[tuple[str, int, str]] = []
        while (step := came_by[last]) is not None:
            steps.append(step)
            last = step[0]
        return steps[::-1]

    def shift(self, path: Sequence[tuple[str, int, str]]) -> None:
        """One partition of each step's topic goes from giver to taker."""
        moved = [(giver, number, taker, max(self.owned[giver][number])) for giver, number, taker in path]
        for giver, number, taker, key in moved:
            keys = self.owned[giver][number]
            keys.remove(key)
            if not keys:
                del self.owned[giver][number]
            self._load[giver] -= 1
            self._give(taker, number, key)

    def _give(self, member_id: str, number: int, key: int) -> None:
        self.owned[member_id].setdefault(number, set()).add(key)
        self._load[member_id] += 1


Apart = Mapping[int, Sequence[int]]
"""Topic number -> indexes of its partitions that are apart, ascending; topics without any are left out."""


def assign_apart(
    assign: Assignor, members: Sequence[Subscriber], topics: Mapping[int, int], apart: Apart
) -> dict[str, Partitions]:
    """`topics`: topic number -> how many partitions are not apart, from index 0 on."""
    live = assign(members, topics)
    if not apart:
        return live
    actual = {
        partition_key(number, place): partition_key(number, index)
        for number, indexes in apart.items()
        for place, index in enumerate(indexes)
    }
    place_of = {key: place for place, key in actual.items()}
    renumbered = [
        member._replace(had=frozenset(place_of[key] for key in member.had if key in place_of)) for member in members
    ]
    others = assign(_on(apart, renumbered), {number: len(indexes) for number, indexes in apart.items()})
    return {
        member_id: partitions | {actual[place] for place in others.get(member_id, ())}
        for member_id, partitions in live.items()
    }


def _on(apart: Apart, members: Sequence[Subscriber]) -> list[Subscriber]:
    return [member._replace(topics=member.topics & apart.keys()) for member in members]
