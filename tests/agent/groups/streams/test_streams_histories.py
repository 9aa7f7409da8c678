"""Random histories of a streams group: threads come, fall silent, lose answers and go; saves fail; coordinators move.

What must hold at every step: no task runs in two threads, no process has a task twice, no thread that gave a task up
can commit for it once another one has it, and no epoch goes back. In the end, without faults, every task runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.groups.members.member import JOIN_EPOCH
from headrace.agent.groups.streams.members import StreamsMember, StreamsRoster
from headrace.agent.groups.streams.membership import StreamsGroupMembership
from headrace.agent.groups.streams.rules import StreamsGroupConfigs
from headrace.agent.groups.streams.topology import task_of
from headrace.metastore.api.groups import GroupRecord
from tests.agent.groups.streams.streams_world import COUNT, REBALANCE, SESSION, Thread, World
from tests.planted import PlantedBugs, Trial
from tests.seeds import first

pytestmark = pytest.mark.requirement("X16")
STEPS = 120
SOURCES = {0: "words", 1: "by-word"}


class History:
    """One seed's. `run` returns what is wrong, or an empty text."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        delay, interval = (self._rng.choice(each) for each in ((0.0, 3.0), (0.0, 1.0)))
        configs = StreamsGroupConfigs(SESSION, 5.0, delay, interval, self._rng.choice((0, 1)))
        self._world = World(configs, words=self._rng.randint(1, 4))
        self._threads: list[Thread] = []
        self._count = 0
        self._gave_up: set[tuple[str, int, int]] = set()
        """Member id, the last epoch at which it had the task, key of the task."""
        self._held: dict[tuple[str, int], int] = {}
        self._epochs = (0, 0)

    def run(self) -> str:
        try:
            for _ in range(STEPS):
                self._rng.choice(self._acts)(self)
                if wrong := self._problem():
                    return wrong
            return self._end()
        except AssertionError as error:
            return str(error)

    # -- what happens

    def _start(self) -> None:
        if len(self._threads) < 4:
            self._count += 1
            self._threads.append(Thread(self._world, f"m{self._count}", self._rng.choice("PQ")))

    def _act(self) -> None:
        for thread in self._rng.choices(self._threads, k=6) if self._threads else ():
            thread.step()

    def _most_act(self) -> None:
        for _ in range(self._rng.randint(2, 12)):
            for thread in self._threads:
                thread.step()
            self._world.store_all()

    def _lose(self) -> None:
        if self._threads:
            self._rng.choice(self._threads).lose_answer()

    def _die(self) -> None:
        if self._threads and self._rng.random() < 0.4:
            self._threads.remove(self._rng.choice(self._threads))

    def _leave(self) -> None:
        if self._threads and self._rng.random() < 0.3:
            thread = self._rng.choice(self._threads)
            self._threads.remove(thread)
            thread.leave()

    def _wait(self) -> None:
        self._world.pass_time(self._rng.choice([0.5, 4.0, SESSION - 1, SESSION + 1, REBALANCE + 1]))

    def _store(self) -> None:
        self._world.store_all()

    def _fail(self) -> None:
        if self._world.saves:
            self._world.store(ErrorCode.coordinator_not_available, happened=self._rng.random() < 0.5)

    def _move(self) -> None:
        if self._world.saves and self._rng.random() < 0.5:
            self._world.durable = self._world.saves[0].state.record()
        self._world.move()

    _acts: tuple[Callable[[History], None], ...] = (
        *(_start, _act, _act, _most_act, _most_act, _most_act, _lose, _die, _leave, _wait, _store, _fail, _move),
    )

    # -- what must hold

    def _problem(self) -> str:
        running: dict[int, str] = {}
        by_process: set[tuple[str, int]] = set()
        roster = self._world.group.roster
        for thread in self._threads:
            if roster.get(thread.member_id) is None:
                continue  # it was given up, and may not have heard of it
            for key in thread.owned:
                task = task_of(key)
                if not task.is_standby and running.setdefault(key, thread.member_id) != thread.member_id:
                    return f"two owners: {task}"
                place = (thread.process_id, task.subtopology << 24 | task.partition)
                if place in by_process:
                    return f"twice in a process: {task}"
                by_process.add(place)
        return self._wrong_commit(running) or self._wrong_epoch()

    def _wrong_commit(self, running: dict[int, str]) -> str:
        for thread in self._threads:
            for key in thread.owned:
                self._held[thread.member_id, key] = thread.epoch
        for (member_id, key), epoch in list(self._held.items()):
            owner = next((each for each in self._threads if each.member_id == member_id), None)
            if owner is None or key not in owner.owned:
                self._gave_up.add((member_id, epoch, key))
                del self._held[member_id, key]
        for member_id, epoch, key in self._gave_up:
            task, holder = task_of(key), running.get(key)
            if holder in (None, member_id) or task.is_standby:
                continue
            partition = self._world.key_of(SOURCES[task.subtopology], task.partition)
            member = self._world.group.roster.get(member_id)
            if member is not None and member.epoch == epoch:
                continue  # its epoch says nothing of single tasks
            if self._world.commit(member_id, epoch, partition) is ErrorCode.none:
                return f"a former owner commits: {task}"
        return ""

    def _wrong_epoch(self) -> str:
        target = self._world.group.target
        now = (target.group_epoch, target.epoch)
        stored = self._world.durable is not None
        for thread in self._threads:
            if any(later < earlier for earlier, later in zip(thread.epochs, thread.epochs[1:], strict=False)):
                return f"an epoch goes back: {thread.epochs}"
        known = [member.epoch for member in self._world.group.roster]
        if stored and any(epoch > target.epoch for epoch in known):
            return f"an epoch goes back: {known} of {now}"
        return ""

    def _end(self) -> str:
        """Left in peace, every task runs."""
        if not self._threads:
            self._threads.append(Thread(self._world, "last", "P"))
        group = self._world.group
        for _ in range(60):
            for thread in self._threads:
                for _ in range(3):
                    thread.step()
                self._world.store_all()
            self._world.pass_time(5.0)
            if wrong := self._problem():
                return wrong
            running = [key for thread in self._threads for key in thread.owned if not task_of(key).is_standby]
            tasks = 2 * len(self._world.topics.by_name["words"].leader_epochs)
            if group.state_name == "Stable" and len(running) == tasks:
                return ""
        return f"not all tasks run: {group.state_name} {len(running)} of {tasks}"


def test_no_history_gives_a_task_two_owners_or_lets_an_epoch_go_back() -> None:
    for seed in first(100, range(3_000)):
        assert History(seed).run() == "", f"seed={seed}"


def _keeps_epochs(self: StreamsGroupMembership, now: float, record: GroupRecord) -> None:
    _RESTORE(self, now, record)
    self.target.group_epoch, self.target.epoch = 1, 1


_RESTORE = StreamsGroupMembership.restore
BUGS: dict[str, tuple[Any, str, Any, str]] = {
    "a task with two owners": (StreamsRoster, "is_taken", lambda self, key, process: False, "held by"),
    "a standby next to its task": (
        *(StreamsRoster, "is_taken", lambda self, key, process: not task_of(key).is_standby and key in self._active),
        "twice in a process",
    ),
    "an epoch that goes back": (StreamsGroupMembership, "restore", _keeps_epochs, "goes back"),
    "a commit of a former owner": (StreamsMember, "has_had", lambda self, keys, epoch: True, "former owner"),
}
"""What is wrong -> class, attribute, wrong one, what a history must show."""
PLANTED = PlantedBugs("streams groups")


@PLANTED.cases(BUGS)
def test_planted_bugs_are_found(bug: str, trial: Trial) -> None:
    owner, name, wrong, found = BUGS[bug]
    trial.plant(owner, name, wrong)
    for seed in trial.seeds():
        trial.saw(found in History(seed).run())


def test_a_thread_of_the_world_joins_and_runs_all() -> None:
    world = World(words=2)
    thread = Thread(world, "a", "P")
    for _ in range(20):
        thread.step()
        world.store_all()
    assert world.names_of(thread.owned) == ["0_0", "0_1", "1_0", "1_1"]
    assert (thread.epoch, COUNT.ids, JOIN_EPOCH) == (world.group.target.epoch, ("0", "1"), 0)
