"""The compaction policy: what must hold of every choice, and what it costs over a day."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.compactor.planner import LAST_LEVEL, PolicyLimits, choose, write_bound
from headrace.metastore.api.compaction import FileFacts
from load.benchmarks.compaction_simulation import Arrivals, simulate

LIMITS = PolicyLimits()
MIB = 1024 * 1024

bodies = st.sampled_from([1, 100, 10_000, MIB, 8 * MIB, 40 * MIB, 70 * MIB])
ages = st.sampled_from([0, 29_999, 30_000, 599_999, 600_000, 4_000_000])
facts = st.builds(
    lambda number, level, body, dead, age: FileFacts(uuid.UUID(int=number), level, body, int(body * (1 - dead)), age),
    number=st.integers(0, 2**64),
    level=st.integers(0, LAST_LEVEL),
    body=bodies,
    dead=st.sampled_from([0.0, 0.3, 0.6, 1.0]),
    age=ages,
)
file_lists = st.lists(facts, max_size=60, unique_by=lambda file: file.file_id)


def files(
    count: int, level: int = 0, body: int = MIB, *, live: int | None = None, age: int = 60_000
) -> list[FileFacts]:
    return [
        FileFacts(uuid.UUID(int=number), level, body, body if live is None else live, age) for number in range(count)
    ]


@given(file_lists, st.randoms(use_true_random=False))
def test_every_choice_is_sound(waiting: list[FileFacts], rng: random.Random) -> None:
    by_id = {file.file_id: file for file in waiting}
    busy = frozenset(file.file_id for file in waiting if rng.random() < 0.2)
    jobs = choose(waiting, busy, LIMITS)
    chosen = [file_id for job in jobs for file_id in job.file_ids]
    assert len(chosen) == len(set(chosen)), "a file in two jobs"
    assert busy.isdisjoint(chosen)
    for job in jobs:
        members = [by_id[file_id] for file_id in job.file_ids]
        (level,) = {file.level for file in members}
        assert job.level == min(level + 1, LAST_LEVEL)
        assert 1 <= len(members) <= LIMITS.job_files
        assert sum(f.live_bytes for f in members[:-1]) < LIMITS.job_bytes[level]
        assert all(file.age_ms >= LIMITS.min_age_ms for file in members)
    assert jobs == choose(list(reversed(waiting)), busy, LIMITS), "the order of the facts matters"


@given(file_lists)
def test_what_was_chosen_is_not_chosen_again(waiting: list[FileFacts]) -> None:
    busy = frozenset(file_id for job in choose(waiting, frozenset(), LIMITS) for file_id in job.file_ids)
    again = choose(waiting, busy, LIMITS)
    assert not again


def test_few_young_files_wait_and_many_do_not() -> None:
    assert choose(files(31), frozenset(), LIMITS) == []
    (job,) = choose(files(32), frozenset(), LIMITS)
    assert (len(job.file_ids), job.level) == (32, 1)
    assert choose(files(300, age=29_999), frozenset(), LIMITS) == []


def test_bytes_and_age_are_reasons_too() -> None:
    (big,) = choose(files(8, body=8 * MIB), frozenset(), LIMITS)
    assert len(big.file_ids) == 8
    (old,) = choose(files(2, body=100, age=LIMITS.max_age_ms), frozenset(), LIMITS)
    assert len(old.file_ids) == 2
    assert choose(files(1, body=100, age=LIMITS.max_age_ms), frozenset(), LIMITS) == [], "nothing to win"
    (single,) = choose(files(1, 1, age=6 * LIMITS.max_age_ms), frozenset(), LIMITS)
    assert single.level == 2, "its batches are still as small as they were sent"


def test_a_file_that_is_mostly_dead_is_rewritten_alone() -> None:
    for level in range(LAST_LEVEL + 1):
        (job,) = choose(files(1, level, 10 * MIB, live=4 * MIB), frozenset(), LIMITS)
        assert job.level == min(level + 1, LAST_LEVEL)
    assert choose(files(1, 2, 10 * MIB, live=6 * MIB), frozenset(), LIMITS) == []
    assert choose(files(1, 2, 1000, live=1), frozenset(), LIMITS) == [], "not worth a request"


def test_small_files_of_the_last_level_are_merged_by_size() -> None:
    assert choose(files(7, 2, 1000), frozenset(), LIMITS) == []
    (job,) = choose(files(8, 2, 1000), frozenset(), LIMITS)
    assert len(job.file_ids) == 8
    unlike = [*files(7, 2, 1000), FileFacts(uuid.UUID(int=99), 2, 20 * MIB, 20 * MIB, 60000)]
    assert choose(unlike, frozenset(), LIMITS) == []
    assert choose(files(20, 2, 40 * MIB), frozenset(), LIMITS) == [], "large enough"


def test_small_files_become_one_file_that_is_large_but_no_rest() -> None:
    """Eight of 8.05 MiB would be one file and 0.4 MiB; two of 20 MiB need not wait for six more."""
    assert [len(job.file_ids) for job in choose(files(9, 2, int(8.05 * MIB)), frozenset(), LIMITS)] == [4, 4]
    assert [len(job.file_ids) for job in choose(files(5, 2, 20 * MIB), frozenset(), LIMITS)] == [2, 2]


def test_the_write_bound_counts_the_classes_above_a_file() -> None:
    sizes = [1, 7, 8, 2 * MIB, 16 * MIB - 1, 16 * MIB, 32 * MIB - 1, 32 * MIB]
    assert [write_bound(LIMITS, size) for size in sizes] == [12, 12, 11, 5, 5, 4, 4, 3]


@pytest.mark.requirement("W10")
@pytest.mark.parametrize("flush_bytes", [20_000, 1_000_000])
def test_an_hour_of_arrivals_leaves_few_files_and_rows(flush_bytes: int) -> None:
    """This is how often it is written: tests/properties/test_compaction_policy.py."""
    result = simulate(Arrivals(seconds=3_600, flushes_per_second=2, flush_bytes=flush_bytes, partitions=50), LIMITS)
    assert result.files < result.flushed_files / 20
    assert result.rows < result.flushed_rows / 10
    assert result.oldest_unmerged_s <= 2 * LIMITS.max_age_ms / 1000
