"""How much a micro-batch takes: in proportion, never more than asked by much, and every partition moves on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.stream import new_offsets, share

ends = st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=6)


def test_shares_are_in_proportion() -> None:
    assert share({"a": 0, "b": 100}, {"a": 300, "b": 400}, 60) == {"a": 30, "b": 130}
    assert share({"a": 0}, {"a": 3, "new": 7}, 10) == {"a": 3, "new": 7}


@given(ends, st.integers(1, 500))
def test_ends_are_between_start_and_newest(places: dict[int, tuple[int, int]], limit: int) -> None:
    start = {key: begin for key, (begin, _) in places.items()}
    latest = {key: begin + more for key, (begin, more) in places.items()}
    taken = share(start, latest, limit)
    assert taken.keys() == latest.keys()
    assert all(start[key] <= taken[key] <= latest[key] for key in taken)
    assert new_offsets(start, taken) <= limit + len(places)
    assert all(taken[key] > start[key] for key in taken if latest[key] > start[key])


def test_rounds_reach_the_end() -> None:
    start, latest = {"a": 0, "b": 0}, {"a": 1_000, "b": 1}
    rounds = 0
    while start != latest:
        start, rounds = share(start, latest, 100), rounds + 1
    assert rounds == 11
