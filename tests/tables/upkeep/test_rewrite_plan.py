"""The plan of a rewrite: groups stay inside a partition and a size, end, and rewrite a row about once per tier."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tables.upkeep.rewriting import RewriteLimits, SmallFile, plan_rewrites, tier_of
from tests.seeds import examples

FILES = st.lists(
    st.builds(
        SmallFile,
        path=st.uuids().map(str),
        place=st.tuples(st.sampled_from([None, 0, 1])),
        size_bytes=st.integers(0, 2_000),
        sequence=st.integers(0, 50),
        is_recent=st.booleans(),
    ),
    max_size=60,
    unique_by=lambda each: each.path,
)
LIMITS = st.builds(RewriteLimits, target_bytes=st.integers(1, 1_500), files_min=st.integers(1, 10))


@given(FILES, LIMITS)
def test_a_group_has_neighbours_of_one_partition(files: list[SmallFile], limits: RewriteLimits) -> None:
    groups = plan_rewrites(files, limits)
    chosen = [each.path for group in groups for each in group]
    assert len(chosen) == len(set(chosen))
    for group in groups:
        assert len({each.place for each in group}) == 1
        assert len(group) > 1
        assert sum(each.size_bytes for each in group) <= limits.target_bytes
        assert all(each.size_bytes < limits.small_bytes for each in group)
        assert [each.sequence for each in group] == sorted(each.sequence for each in group)


def rewritten(files: Sequence[SmallFile], limits: RewriteLimits, number: itertools.count[int]) -> list[SmallFile]:
    """Do what the plan says."""
    left = {each.path: each for each in files}
    for group in plan_rewrites(files, limits):
        for each in group:
            del left[each.path]
        size = sum(each.size_bytes for each in group)
        at = next(number)
        left[f"n{at}"] = SmallFile(f"n{at}", group[0].place, size, at, is_recent=False)
    return list(left.values())


@settings(max_examples=examples(30))
@given(FILES, LIMITS)
def test_plans_of_a_partition_without_new_files_end(files: list[SmallFile], limits: RewriteLimits) -> None:
    number = itertools.count(100)
    files = [each._replace(is_recent=False) for each in files]
    for _ in range(len(files) + 1):
        after = rewritten(files, limits, number)
        if len(after) == len(files):
            break
        files = after
    assert plan_rewrites(files, limits) == []


def test_a_row_is_rewritten_about_once_per_tier() -> None:
    """A file a minute for a week, with a plan each hour."""
    limits, number = RewriteLimits(64 << 20, 8), itertools.count()
    size = 100_000
    files: list[SmallFile] = []
    moved = most = 0
    for minute in range(7 * 24 * 60):
        at = next(number)
        files.append(SmallFile(f"n{at}", (), size, at, is_recent=True))
        if minute % 60 == 59:
            before = {each.path for each in files}
            after = [each._replace(is_recent=True) for each in rewritten(files, limits, number)]
            moved += sum(each.size_bytes for each in after if each.path not in before)
            files = after
            most = max(most, len(files))
    total = 7 * 24 * 60 * size
    tiers = tier_of(limits.small_bytes, limits.target_bytes)
    assert sum(each.size_bytes for each in files) == total
    assert moved / total <= tiers
    assert most <= 60 + 7 * (tiers + 1) + total // limits.small_bytes
