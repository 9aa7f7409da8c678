"""The assignor `uniform`: the same number of partitions for each member, and as few moves as that allows.

Place: one of the choices of target.py, and the default.
Invariant: with equal subscriptions, members differ by one partition at most, and a member loses only
what it has beyond its share. With different subscriptions, `level` brings members as close
together as their subscriptions allow.
Method of `level`: keep what is still valid, hand what is free to the least loaded subscriber (the topics with the
fewest subscribers first), then level: while some member has at least two partitions more than one that can be reached
from it, shift a partition along the path, from topic to topic. Without such a path no assignment is more even (optimal
semi-matching: no cost-reducing path). A shift takes one partition from the most loaded end and moves nothing else than
the path, so what need not move stays. Each search of `relief` is O(subscriptions); there are as many as partitions that
must move.
Source: KIP-848, Kafka's UniformAssignor.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence

from headrace.agent.groups.consumer.assignors.assignor import Subscriber, partitions_of
from headrace.agent.groups.members.partitions import Partitions
from headrace.metastore.keys import partition_key, split_partition_key


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
