"""Linear hashing against buckets that are split one by one, and the promises of KIP-253 about it."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict

import pytest
from aiokafka.partitioner import murmur2 as murmur2_of_aiokafka
from hypothesis import given
from hypothesis import strategies as st

from headrace.metastore.partitions.placement import (
    ancestors,
    children,
    is_power_of_two_times,
    key_hash,
    nearest,
    parent,
    place,
)

HASHES = st.integers(0, 2**31 - 1)
INITIALS = st.integers(1, 50)
COUNTS = st.tuples(INITIALS, st.integers(0, 500)).map(lambda pair: (pair[0], sum(pair)))
"""(initial count, a later count)."""


def _buckets(initial: int, hashes: list[int], count: int) -> tuple[list[set[int]], dict[int, int]]:
    """The hashes of each partition, and where each partition was split off, by splitting one after another."""
    buckets = [{each for each in hashes if each % initial == index} for index in range(initial)]
    split_off: dict[int, int] = {}
    size, pointer = initial, 0
    while len(buckets) < count:
        new = len(buckets)
        moved = {each for each in buckets[pointer] if each % (2 * size) != pointer}
        buckets[pointer] -= moved
        buckets.append(moved)
        split_off[new] = pointer
        pointer += 1
        if pointer == size:
            size, pointer = 2 * size, 0
    return buckets, split_off


@pytest.mark.requirement("P1")
@pytest.mark.parametrize("initial", [1, 2, 3, 5, 8, 12])
def test_it_splits_one_partition_at_a_time(initial: int) -> None:
    rng = random.Random(initial)
    hashes = [rng.randrange(2**31) for _ in range(400)]
    for count in range(initial, 5 * initial + 7):
        buckets, split_off = _buckets(initial, hashes, count)
        for index, bucket in enumerate(buckets):
            assert {place(each, initial, count) for each in bucket} <= {index}
        assert {index: parent(index, initial) for index in range(count)} == {
            index: split_off.get(index) for index in range(count)
        }
        by_parent = defaultdict(list)
        for new, old in split_off.items():
            by_parent[old].append(new)
        assert {index: children(index, initial, count) for index in range(count)} == {
            index: tuple(by_parent[index]) for index in range(count)
        }


@pytest.mark.requirement("P1")
@given(st.binary(max_size=40), st.integers(1, 10_000))
def test_with_the_initial_count_it_is_kafkas_placement(key: bytes, initial: int) -> None:
    assert place(key_hash(key), initial, initial) == (murmur2_of_aiokafka(key) & 0x7FFFFFFF) % initial


@pytest.mark.requirement("P1")
@given(COUNTS, st.integers(0, 500), st.lists(HASHES, min_size=1, max_size=50))
def test_no_key_moves_between_existing_partitions(counts: tuple[int, int], more: int, hashes: list[int]) -> None:
    initial, before = counts
    for hashed in hashes:
        old, new = place(hashed, initial, before), place(hashed, initial, before + more)
        if new != old:
            assert new >= before, "a partition that was not there"
            assert nearest(new, initial, before) == old, "each new partition has one source"
            assert old in ancestors(new, initial)


@pytest.mark.requirement("P1")
@given(COUNTS, st.integers(1, 500))
def test_a_deletion_touches_a_logarithm_of_partitions(counts: tuple[int, int], fewer: int) -> None:
    initial, before = counts
    after = max(initial, before - fewer)
    for deleted in range(after, before):
        above = ancestors(deleted, initial)
        assert len(above) <= math.log2(deleted / initial) + 1
        assert list(above) == sorted(set(above), reverse=True)
        assert above[-1] < initial
        heir = nearest(deleted, initial, after)
        assert heir in above
        assert heir < after
    for remaining in range(after):
        assert len(children(remaining, initial, before)) <= math.log2(before / initial) + 1


@pytest.mark.requirement("P1")
@given(COUNTS, st.integers(1, 500), HASHES)
def test_the_keys_of_a_deleted_partition_go_to_its_heir(counts: tuple[int, int], fewer: int, hashed: int) -> None:
    initial, before = counts
    after = max(initial, before - fewer)
    old = place(hashed, initial, before)
    assert place(hashed, initial, after) == nearest(old, initial, after)


@given(INITIALS, st.integers(0, 8), HASHES)
def test_doubling_moves_keys_as_clients_do_that_know_the_count_alone(initial: int, rounds: int, hashed: int) -> None:
    count = initial << rounds
    assert is_power_of_two_times(initial, count)
    assert place(hashed, initial, count) == hashed % count
    doubled = place(hashed, initial, 2 * count)
    assert doubled == hashed % (2 * count)
    assert doubled in (hashed % count, hashed % count + count)
    assert [nearest(count + index, initial, count) for index in range(count)] == list(range(count))


@given(COUNTS)
def test_at_other_counts_some_key_is_elsewhere(counts: tuple[int, int]) -> None:
    initial, count = counts
    elsewhere = (place(hashed, initial, count) != hashed % count for hashed in itertools.count())
    if not is_power_of_two_times(initial, count):
        assert any(itertools.islice(elsewhere, 4 * count))


@given(COUNTS)
def test_every_partition_gets_keys(counts: tuple[int, int]) -> None:
    initial, count = counts
    rounds = math.ceil(math.log2(count / initial)) + 1
    assert {place(hashed, initial, count) for hashed in range(initial << rounds)} == set(range(count))
