"""Kafka's sticky assignor of tasks: its tests, and what must hold of any group."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.groups.streams.assignor import TaskMember, assign
from headrace.agent.groups.streams.topology import StreamsTask, task_key, task_of
from tests.seeds import examples

pytestmark = pytest.mark.requirement("X16")
Given = dict[str, frozenset[int]]


def tasks(*names: str) -> frozenset[int]:
    """Return the keys of tasks such as 0_1, or 0_1s of a standby."""
    found = set()
    for name in names:
        number, partition = name.rstrip("s").split("_")
        found.add(task_key(int(number), int(partition), is_standby=name.endswith("s")))
    return frozenset(found)


def worker(member_id: str, *before: str, process_id: str = "") -> TaskMember:
    return TaskMember(member_id, process_id or f"p-{member_id}", tasks(*before))


def roles(given: frozenset[int]) -> tuple[int, int]:
    """Return how many are active, and how many are standbys."""
    standbys = sum(task_of(key).is_standby for key in given)
    return len(given) - standbys, standbys


def test_each_process_gets_a_task_and_keeps_it() -> None:
    first = assign([worker(name) for name in "abc"], [(3, False)], 0)
    assert sorted(map(len, first.values())) == [1, 1, 1]
    again = assign([TaskMember(name, f"p-{name}", first[name]) for name in "abc"], [(3, False)], 0)
    assert again == first


def test_tasks_of_the_same_partition_begin_apart() -> None:
    """Kafka assigns by ranges: a member has tasks of one subtopology rather than of one partition."""
    found = assign([worker("a"), worker("b")], [(2, False), (2, False)], 0)
    assert found == {"a": tasks("0_0", "1_0"), "b": tasks("0_1", "1_1")}


def test_processes_get_tasks_by_their_threads() -> None:
    threads = [TaskMember(f"a{number}", "A", frozenset()) for number in range(2)] + [TaskMember("b", "B", frozenset())]
    found = assign(threads, [(3, False)], 0)
    assert [len(found[name]) for name in ("a0", "a1", "b")] == [1, 1, 1]


def test_a_task_moves_to_where_its_standby_was() -> None:
    found = assign([worker("a", "0_0s"), worker("b", "0_1"), worker("c")], [(2, True)], 0)
    assert found["a"] == tasks("0_0")
    assert found["b"] == tasks("0_1")


def test_a_new_process_takes_only_what_makes_it_even() -> None:
    before = tasks("0_0", "0_1", "0_2", "0_3")
    found = assign([TaskMember("a", "A", before), worker("b")], [(4, False)], 0)
    assert found["a"] < before
    assert (len(found["a"]), len(found["b"])) == (2, 2)


def test_standbys_are_on_other_processes_and_stay() -> None:
    first = assign([worker(name) for name in "abc"], [(3, True)], 1)
    assert {roles(given) for given in first.values()} == {(1, 1)}
    again = assign([TaskMember(name, f"p-{name}", first[name]) for name in "abc"], [(3, True)], 1)
    assert again == first
    alone = assign([TaskMember(name, "one", frozenset()) for name in "abc"], [(3, True)], 2)
    assert {roles(given) for given in alone.values()} == {(1, 0)}, "one process has each task already"


def test_subtopologies_without_state_have_no_standbys() -> None:
    found = assign([worker("a"), worker("b")], [(2, False), (2, True)], 1)
    standbys = [task_of(key) for given in found.values() for key in given if task_of(key).is_standby]
    assert sorted(standbys) == [StreamsTask(1, 0, True), StreamsTask(1, 1, True)]


def test_more_members_than_tasks() -> None:
    found = assign([worker(name) for name in "abcd"], [(2, False)], 0)
    assert sorted(map(len, found.values())) == [0, 0, 1, 1]
    assert assign([], [(2, True)], 1) == {}


def test_of_two_former_homes_of_a_standby_the_less_loaded_is_taken() -> None:
    found = assign([worker("a", "0_0s", "0_1"), worker("b", "0_0s"), worker("c")], [(2, True)], 0)
    assert found["b"] == tasks("0_0")


counts = st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=3)
members = st.dictionaries(st.sampled_from([f"m{at}" for at in range(7)]), st.sampled_from("ABC"), max_size=6)


@settings(max_examples=examples(200))
@given(counts=counts, members=members, later=members, standbys=st.integers(0, 2))
def test_any_group(
    counts: list[tuple[int, bool]], members: dict[str, str], later: dict[str, str], standbys: int
) -> None:
    """Each task has one owner, also after members came and went; no process has one twice, and it is the same again."""
    first = assign([TaskMember(name, process, frozenset()) for name, process in members.items()], counts, standbys)
    workers = [TaskMember(name, process, first.get(name, frozenset())) for name, process in later.items()]
    found = assign(workers, counts, standbys)
    assert found == assign(list(reversed(workers)), counts, standbys)
    assert set(found) == set(later)
    active = Counter(key for given in found.values() for key in given if not task_of(key).is_standby)
    wanted = {task_key(number, at) for number, (count, _) in enumerate(counts) for at in range(count)}
    assert active == Counter(wanted if later else ())
    places = Counter(
        (later[name], task_of(key)._replace(is_standby=False)) for name, given in found.items() for key in given
    )
    assert not places or max(places.values()) == 1
    replicas = Counter(task_of(key)._replace(is_standby=False) for given in found.values() for key in given)
    processes = len(set(later.values()))
    for number, (count, is_stateful) in enumerate(counts):
        for at in range(count if later else 0):
            expected = min(1 + standbys, processes) if is_stateful else 1
            assert replicas[StreamsTask(number, at, False)] == expected
    once_more = assign([TaskMember(name, later[name], found[name]) for name in later], counts, standbys)
    moved = sum(len(found[name] - once_more[name]) for name in later)
    assert moved <= len(wanted), "what is assigned stays, but for what makes it more even"
