"""Gates of a group: no child before its parent's boundary, none taken away again; planted bugs are found."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from headrace.agent.groups.consumer import membership as target_module
from headrace.agent.groups.consumer import topics as gates_module
from headrace.agent.groups.consumer.group import ConsumerGroup
from headrace.agent.groups.consumer.saved import decode
from headrace.agent.groups.consumer.topics import Gate, GroupGates, KnownTopics, may_open
from headrace.metastore.api.groups import ParentPosition
from tests.agent.groups.consumer.consumer_world import World
from tests.agent.groups.consumer.gate_histories import first_problem
from tests.planted import PlantedBugs, Trial

pytestmark = pytest.mark.requirement("X5")
SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_children_are_given_behind_the_boundary_and_stay(seed: int) -> None:
    assert first_problem(seed) is None


@pytest.mark.slow
def test_many_histories() -> None:
    assert [seed for seed in range(1_000) if first_problem(seed)] == []


real_digest = target_module._digest
real_judge = GroupGates.judge


def _judge_by_any_parent(
    self: GroupGates, now: float, asked: Iterable[Gate], positions: Iterable[ParentPosition]
) -> bool:
    known = list(positions)
    furthest = max(known, key=lambda position: position.committed or 0, default=None)
    moved = [] if furthest is None else [furthest._replace(parent_key=position.parent_key) for position in known]
    return real_judge(self, now, asked, moved)


def _opened_early(gate: Gate, position: ParentPosition) -> bool:
    read = max(position.committed or 0, position.log_start)
    return gate.boundary is not None and read >= gate.boundary - 1


def _closed_as_if_open_once_set(self: GroupGates, gates: Iterable[Gate]) -> frozenset[int]:
    return frozenset(gate.child_key for gate in gates if gate.boundary is None)


def _judge_again(self: GroupGates, now: float, asked: Iterable[Gate], positions: Iterable[ParentPosition]) -> bool:
    self.forget()
    return real_judge(self, now, asked, positions)


def _group_that_looks_at_all(
    self: ConsumerGroup, now: float, topics: KnownTopics, numbers: Iterable[int]
) -> list[Gate]:
    return [gate for gate in topics.all_gates() if gate.boundary is not None]


Planted = dict[str, tuple[object, str, object]]
PLANTED: Planted = {
    "one record too early": (gates_module, "may_open", _opened_early),
    "a parent that is not looked at": (
        gates_module,
        "may_open",
        lambda gate, at: gate.parent_key & 255 == 1 or may_open(gate, at),
    ),
    "another parent's position": (GroupGates, "judge", _judge_by_any_parent),
    "the log start is not looked at": (
        gates_module,
        "may_open",
        lambda gate, at: may_open(gate, at._replace(log_start=0)),
    ),
    "the boundary alone opens it": (GroupGates, "closed", _closed_as_if_open_once_set),
    "the digest has no gates": (
        target_module,
        "_digest",
        lambda counts, apart: real_digest(dict.fromkeys(counts, 0), {}),
    ),
    "gates close with a new coordinator": (GroupGates, "restore", lambda self, opened: None),
    "gates stay open without members": (GroupGates, "forget", lambda self: None),
    "gates are never judged": (GroupGates, "judge", lambda *_: False),
    "children are given at once": (KnownTopics, "behind", lambda self, gates: self),
}


BUGS = PlantedBugs("gates of a group")


@BUGS.cases(PLANTED)
def test_planted_bugs_are_found(bug: str, trial: Trial) -> None:
    trial.plant(*PLANTED[bug])
    for seed in trial.seeds():
        trial.saw(first_problem(seed))


@BUGS.cases(["what is open is not remembered"])
def test_gates_close_if_all_are_judged_again(bug: str, trial: Trial) -> None:
    """An offset that goes back closes a gate."""
    trial.plant(ConsumerGroup, "gates_to_judge", _group_that_looks_at_all)
    trial.plant(GroupGates, "judge", _judge_again)
    for seed in trial.seeds():
        trial.saw(first_problem(seed))


def test_what_is_saved() -> None:
    """Also of an agent that knows no gates, and after a doubling with another boundary."""
    world = World()
    world.topics.put("t", 2)
    world.topics.double("t")
    world.say("m", 0)
    assert world.durable is not None
    assert decode(world.durable.data).opened == {}
    world.topics.set_boundary("t", 0, 5)
    topics = world.topics.topics(())
    (gate,) = world.group.gates_to_judge(0.0, topics, ()) or ()
    world.group.judge_gates(0.0, [gate], [ParentPosition(gate.parent_key, 0, 5)])
    world.say("m", 1, rebalance_timeout=60.0)
    assert decode(world.durable.data).opened == {gate.child_key: 5}
    restored = GroupGates()
    restored.restore({gate.child_key: 5})
    assert not restored.closed([gate])
    assert restored.closed([gate._replace(boundary=6)]) == restored.closed([gate._replace(boundary=None)])
    assert restored.closed([gate._replace(boundary=6)]) == {gate.child_key}


def test_gates_that_wait_for_the_group() -> None:
    gates, gate = GroupGates(), Gate(1, 3, 10)
    gates.judge(5.0, [gate, Gate(2, 4, None)], [ParentPosition(1, 0, None), ParentPosition(2, 0, 7)])
    assert (gates.late, gates.late_since) == ((gate,), 5.0)
    gates.judge(8.0, [gate], [ParentPosition(1, 3, 9)])
    assert gates.late_since == 5.0
    gates.judge(9.0, [gate], [ParentPosition(1, 10, None)])
    assert (gates.late, gates.late_since) == ((), None)
