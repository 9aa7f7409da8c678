"""Kafka's sticky assignor of tasks: each task runs on one member, its standbys on other processes. Pure.

Place: asked by membership.py for each target. Tasks and members are keys and ids; a process may have several members,
one for each of its threads.
Invariant: deterministic: members and processes are taken in the order of their ids where Kafka takes them as they
come. Each active task has one member. No process has a task twice. A task without enough processes has fewer standbys.
Source: KIP-1071, Kafka's StickyTaskAssignor and ProcessState.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.agent.groups.members.member import Partitions
from headrace.agent.groups.streams.topology import is_standby, other_role, task_key
from headrace.metastore.keys import split_partition_key

NAME = "sticky"


class TaskMember(NamedTuple):
    """A member, and the tasks of the last target, as keys of either role."""

    member_id: str
    process_id: str
    before: Partitions


@dataclass(slots=True, eq=False)
class _Process:
    """What the members of one process have so far. Tasks are keys of active ones, whichever their role."""

    name: str
    counts: dict[str, int] = field(default_factory=dict)
    """Member id -> its tasks."""
    tasks: set[int] = field(default_factory=set)
    _by_count: list[tuple[int, str]] = field(default_factory=list)
    """A heap of members; an entry with another count than the member's is old."""

    def join(self, member_id: str) -> None:
        """It has one member more."""
        self._set(member_id, 0)

    def take(self, member_id: str, task: int) -> int:
        """A member gets a task; return how many it has."""
        self.tasks.add(task)
        self._set(member_id, self.counts[member_id] + 1)
        return self.counts[member_id]

    def _set(self, member_id: str, count: int) -> None:
        self.counts[member_id] = count
        heapq.heappush(self._by_count, (count, member_id))

    @property
    def load(self) -> float:
        """Tasks for each member."""
        return len(self.tasks) / len(self.counts)

    def least_loaded(self) -> str:
        """Return the member with the fewest tasks; of equals, the first by id."""
        while self._by_count[0][0] != self.counts[self._by_count[0][1]]:
            heapq.heappop(self._by_count)
        return self._by_count[0][1]


class _Quota:
    """The most tasks of a member before others get some; it is computed again for the rest when a member is full."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members
        self.each = self._share()

    def _share(self) -> int:
        return -(-self._tasks // self._members) if self._members else 0

    def took(self, count: int) -> None:
        """A member has so many by now."""
        if count == self.each:
            self._members -= 1
            self._tasks -= count
            self.each = self._share()


def assign(
    workers: Iterable[TaskMember], task_counts: Sequence[tuple[int, bool]], standbys: int
) -> dict[str, frozenset[int]]:
    """Return the tasks of each member, by its id. `task_counts` by the number of the subtopology: active tasks, and
    whether they have state. `standbys`: of each task with state.
    """
    return _Assignment(sorted(workers), task_counts, standbys).made()


class _Assignment:
    """One run of the assignor."""

    def __init__(self, workers: Sequence[TaskMember], task_counts: Sequence[tuple[int, bool]], standbys: int) -> None:
        self._standbys = standbys
        self._active, self._stateful = list[int](), list[int]()
        for number, (count, is_stateful) in enumerate(task_counts):
            tasks = [task_key(number, at) for at in range(count)]
            self._active += tasks
            self._stateful += tasks if is_stateful else ()
        total = len(self._active) + len(self._stateful) * standbys
        self._active_quota = _Quota(len(self._active), len(workers))
        self._quota = _Quota(total, len(workers))
        self._processes: dict[str, _Process] = {}
        self._home: dict[str, _Process] = {}
        self._was_active: dict[int, str] = {}
        self._was_standby: dict[int, list[str]] = {}
        self._given: dict[str, set[int]] = {worker.member_id: set() for worker in workers}
        for worker in workers:
            process = self._processes.setdefault(worker.process_id, _Process(worker.process_id))
            process.join(worker.member_id)
            self._home[worker.member_id] = process
            for key in worker.before:
                if is_standby(key):
                    self._was_standby.setdefault(other_role(key), []).append(worker.member_id)
                else:
                    self._was_active[key] = worker.member_id

    def made(self) -> dict[str, frozenset[int]]:
        """Return the assignment."""
        if self._given:
            self._assign_active()
            if self._standbys > 0:
                self._assign_standbys()
        return {member_id: frozenset(keys) for member_id, keys in self._given.items()}

    def _give(self, member_id: str, task: int, *, as_standby: bool = False) -> None:
        count = self._home[member_id].take(member_id, task)
        self._given[member_id].add(other_role(task) if as_standby else task)
        if not as_standby:
            self._active_quota.took(count)
        self._quota.took(count)

    def _assign_active(self) -> None:
        """Give each task to the member that had it, else to one that had it as standby, else to the least loaded."""
        left = sorted(self._active, key=_by_partition)
        for before in (self._was_active.get, self._least_loaded_standby):
            rest = []
            for task in left:
                member_id = before(task)
                if member_id is not None and self._count(member_id) < self._active_quota.each:
                    self._give(member_id, task)
                else:
                    rest.append(task)
            left = rest
        queue = self._queue()
        for task in sorted(left):
            _, _, process = heapq.heappop(queue)
            self._give(process.least_loaded(), task)
            heapq.heappush(queue, (process.load, process.name, process))

    def _assign_standbys(self) -> None:
        """Give each standby to a member that had the task, as long as it has room, else to the least loaded."""
        rest: list[tuple[int, int]] = []
        for task in sorted(self._stateful, key=_by_partition, reverse=True):
            for number in range(self._standbys):
                member_id = self._sticky_standby(task)
                if member_id is None:
                    rest.append((task, self._standbys - number))
                    break
                self._give(member_id, task, as_standby=True)
        queue = self._queue()
        for task, count in sorted(rest, reverse=True):
            for _ in range(count):
                if not self._give_to_least_loaded(queue, task):
                    break

    def _sticky_standby(self, task: int) -> str | None:
        for member_id in (self._was_active.get(task), self._least_loaded_standby(task, lacks=True)):
            is_free = member_id is not None and task not in self._home[member_id].tasks
            if member_id is not None and is_free and self._count(member_id) < self._quota.each:
                return member_id
        return None

    def _give_to_least_loaded(self, queue: list[tuple[float, str, _Process]], task: int) -> bool:
        passed = []
        while queue and task in queue[0][2].tasks:
            passed.append(heapq.heappop(queue))
        found = queue[0][2] if queue else None
        if found is not None:
            heapq.heappop(queue)
            self._give(found.least_loaded(), task, as_standby=True)
            passed.append((found.load, found.name, found))
        for each in passed:
            heapq.heappush(queue, each)
        return found is not None

    def _least_loaded_standby(self, task: int, *, lacks: bool = False) -> str | None:
        """Return the member with the least to do among those that had the task as standby; `lacks`: only if its
        process does not have it now. None if there is none.
        """
        members = self._was_standby.get(task)
        if not members:
            return None
        best = members[0]
        for member_id in members[1:]:
            process, known = self._home[member_id], self._home[best]
            is_free = not lacks or task not in process.tasks
            if is_free and process.load < known.load and self._count(member_id) < self._count(best):
                best = member_id
        return None if lacks and task in self._home[members[0]].tasks else best

    def _queue(self) -> list[tuple[float, str, _Process]]:
        queue = [(process.load, process.name, process) for process in self._processes.values()]
        heapq.heapify(queue)
        return queue

    def _count(self, member_id: str) -> int:
        return self._home[member_id].counts[member_id]


def _by_partition(key: int) -> tuple[int, int]:
    """Return the order in which tasks of the same partition are together: a member gets them together."""
    number, partition = split_partition_key(key)
    return partition, number
