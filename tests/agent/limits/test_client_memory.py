"""A memory of what clients sent uses at most its limit in bytes, for keys and values of any length."""

from __future__ import annotations

import sys
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agent.cluster.zone import remembered, zone_of
from headrace.agent.limits.client_memory import ENTRY_BYTES, ClientMemory, text_bytes

pytestmark = pytest.mark.requirement("X7")
LIMIT, LARGEST = 4_000, 1_500
TEXTS = st.builds(lambda letter, length: letter * length, st.sampled_from("ab\U0001f600"), st.integers(0, 400))
STEPS = st.lists(st.tuples(st.sampled_from(["put", "add", "pop"]), TEXTS, TEXTS), max_size=60)


def a_memory(count_max: int = 2**31) -> ClientMemory[str, str]:
    return ClientMemory(LIMIT, text_bytes, LARGEST, count_max)


def size_of(key: str, value: str) -> int:
    return ENTRY_BYTES + sys.getsizeof(key) + sys.getsizeof(value)


@given(steps=STEPS, count_max=st.integers(1, 5))
def test_it_keeps_the_newest_that_fit_and_counts_them(steps: list[tuple[str, str, str]], count_max: int) -> None:
    memory, kept = a_memory(count_max), OrderedDict[str, str]()

    def has_room(size: int) -> bool:
        return size + sum(size_of(*entry) for entry in kept.items()) <= LIMIT and len(kept) < count_max

    for step, key, value in steps:
        size = size_of(key, value)
        before = kept.pop(key, None)
        if step == "pop":
            assert memory.pop(key) == before
        elif step == "put":
            assert memory.put(key, value) is (size <= LARGEST)
            while size <= LARGEST and not has_room(size):
                kept.popitem(last=False)
            if size <= LARGEST:
                kept[key] = value
        else:
            fits = size <= LARGEST and has_room(size)
            assert memory.has_room(key, value) is fits or before is not None
            assert memory.add(key, value) is fits
            if fits:
                kept[key] = value
        assert memory.items() == list(kept.items())
        assert memory.in_use_bytes == sum(size_of(*entry) for entry in kept.items()) <= LIMIT
    assert all(memory.get(key) == value for key, value in kept.items())
    memory.clear()
    assert len(memory) == memory.in_use_bytes == 0


def test_characters_that_need_four_bytes_count_as_such() -> None:
    assert text_bytes("\U0001f600" * 1_000, None) > 4_000 > 2 * text_bytes("a" * 1_000)


def test_zones_of_long_client_ids_are_found_and_not_kept() -> None:
    remembered.clear()
    for number in range(200):
        assert zone_of(f"{number}".ljust(32_000, "x") + ",zone=eu-1a") == "eu-1a"
    assert len(remembered) == 0
    for number in range(20_000):
        assert zone_of(f"app-{number},zone=eu-1a") == "eu-1a"
    assert zone_of("app") is None
    assert remembered.in_use_bytes <= 1024 * 1024
    remembered.clear()
