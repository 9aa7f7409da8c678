"""The budget: never over the total, granted in order, no reservation starves."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.listener.memory import MemoryBudget
from tests.seeds import examples


def test_a_small_frame_does_not_overtake_a_large_one() -> None:
    budget, granted = MemoryBudget(100), list[str]()
    assert budget.reserve(60, lambda: None)
    assert not budget.reserve(80, lambda: granted.append("large"))
    assert not budget.reserve(1, lambda: granted.append("small"))
    budget.release(60)
    assert granted == ["large", "small"]
    assert budget.in_use_bytes == 81


def test_a_frame_larger_than_the_total_is_admitted_alone() -> None:
    budget, granted = MemoryBudget(100), list[str]()
    assert budget.reserve(10, lambda: None)
    assert not budget.reserve(500, lambda: granted.append("huge"))
    assert not budget.reserve(10, lambda: granted.append("next"))
    budget.release(10)
    assert granted == ["huge"]
    budget.release(500)
    assert granted == ["huge", "next"]


def test_who_gives_up_makes_room_for_those_behind() -> None:
    budget, granted = MemoryBudget(100), list[str]()
    assert budget.reserve(50, lambda: None)

    def gone() -> None:
        raise AssertionError("withdrawn")

    assert not budget.reserve(80, gone)
    assert not budget.reserve(50, lambda: granted.append("next"))
    budget.withdraw(gone)
    assert granted == ["next"]
    assert budget.waiting == 0


def test_ten_thousand_waiters_that_give_up_at_once_do_not_nest() -> None:
    budget = MemoryBudget(10)
    assert budget.reserve(10, lambda: None)
    for _ in range(10_000):
        assert not budget.reserve(10, lambda: budget.release(10))
    budget.release(10)
    assert (budget.in_use_bytes, budget.waiting) == (0, 0)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.sampled_from(["reserve", "release", "withdraw"]), st.integers(1, 150)), max_size=60))
def test_any_history_keeps_the_bound_and_the_order(history: list[tuple[str, int]]) -> None:
    total = 100
    budget = MemoryBudget(total)
    held: list[int] = []
    waiting: list[tuple[int, Callable[[], None]]] = []

    def waiter(size: int) -> Callable[[], None]:
        def granted() -> None:
            assert waiting.pop(0) == (size, granted), "first come, first served"
            held.append(size)

        return granted

    for action, size in history:
        if action == "reserve":
            granted = waiter(size)
            if budget.reserve(size, granted):
                assert not waiting
                held.append(size)
            else:
                waiting.append((size, granted))
        elif action == "release" and held:
            budget.release(held.pop(size % len(held)))
        elif action == "withdraw" and waiting:
            _, callback = waiting.pop(size % len(waiting))
            budget.withdraw(callback)
        assert budget.in_use_bytes == sum(held)
        assert sum(held) <= total or len(held) == 1
        assert not waiting or held, "a reservation waits for no other"
    while held:
        budget.release(held.pop())
    assert (budget.in_use_bytes, budget.waiting, waiting) == (0, 0, [])


def test_clients_take_turns() -> None:
    budget, granted = MemoryBudget(100), list[str]()
    assert budget.reserve(100, lambda: None)
    for number in range(3):
        assert not budget.reserve(100, lambda number=number: granted.append(f"greedy {number}"), "greedy")
    assert not budget.reserve(100, lambda: granted.append("modest"), "modest")
    for _ in range(4):
        budget.release(100)
    assert granted == ["greedy 0", "modest", "greedy 1", "greedy 2"]


def test_large_frames_leave_a_reserve_to_small_ones() -> None:
    budget, granted = MemoryBudget(100, small_bytes=10, small_reserve=30), list[str]()
    assert budget.reserve(70, lambda: None)
    assert not budget.reserve(20, lambda: granted.append("large"))
    assert all(budget.reserve(10, lambda: None) for _ in range(3))
    assert not budget.reserve(10, lambda: granted.append("small"))
    assert budget.in_use_bytes == 100
    budget.release(10)
    assert granted == ["small"], "the reserve is not the large frame's"
    budget.release(70)
    assert granted == ["small", "large"]


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.tuples(st.sampled_from(["reserve", "release", "withdraw"]), st.integers(1, 90), st.sampled_from("abc")),
        max_size=60,
    )
)
def test_any_history_with_a_reserve_ends_with_nothing_in_use(history: list[tuple[str, int, str]]) -> None:
    budget = MemoryBudget(100, small_bytes=20, small_reserve=40)
    held: list[int] = []
    waiting: dict[Callable[[], None], int] = {}

    def waiter(size: int) -> Callable[[], None]:
        def granted() -> None:
            held.append(waiting.pop(granted))

        return granted

    for action, size, client in history:
        if action == "reserve":
            granted = waiter(size)
            if budget.reserve(size, granted, client):
                held.append(size)
            else:
                waiting[granted] = size
        elif action == "release" and held:
            budget.release(held.pop(size % len(held)))
        elif action == "withdraw" and waiting:
            callback = list(waiting)[size % len(waiting)]
            del waiting[callback]
            budget.withdraw(callback)
        assert budget.in_use_bytes == sum(held)
        assert sum(each for each in held if each <= 20) <= 100
        assert sum(held) <= 100 or sum(each > 20 for each in held) == 1
        assert len(waiting) == budget.waiting
        assert not waiting or held, "a frame waits although nothing is in use"
    while held:
        budget.release(held.pop())
    assert (budget.in_use_bytes, budget.waiting) == (0, 0)
