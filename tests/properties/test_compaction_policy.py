"""Any arrivals, any deaths: compaction writes a bounded number of times, comes to an end, and leaves few files.

The policy runs on load/benchmarks/compaction_simulation.py's arithmetic, which cuts a job's output as merge.py does:
large files, and the rest in a last one. Limits are drawn small, so that a hundred flushes climb all the way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from headrace.compactor.merge import MergeLimits
from headrace.compactor.planner import LAST_LEVEL, PolicyLimits, write_bound
from load.benchmarks.compaction_simulation import Simulation, file_sizes
from tests.seeds import examples

MAX_AGE_MS = 600_000
ALL_OLD_S = 6 * MAX_AGE_MS / 1000
MIB = 1024 * 1024


@dataclass(frozen=True)
class Flushes:
    """`count` of them, every `every_s` seconds; sizes between the two; a part of each dead at once."""

    count: int
    every_s: float
    least_bytes: int
    most_bytes: int
    dead_share: float


@dataclass(frozen=True)
class Deaths:
    """A part of the live files loses a part of what it has; 1: all of it."""

    files: float
    share: float


@st.composite
def policies(draw: st.DrawFn) -> tuple[PolicyLimits, MergeLimits]:
    small = draw(st.integers(100, 600))
    limits = PolicyLimits(
        min_age_ms=draw(st.sampled_from([0, 30_000])),
        max_age_ms=MAX_AGE_MS,
        fan_in=draw(st.integers(2, 5)),
        job_files=draw(st.integers(5, 20)),
        job_bytes=tuple(draw(st.integers(2 * small, 10 * small)) for _ in range(3)),
        small_bytes=small,
        tier=draw(st.integers(2, 8)),
        dead_bytes=draw(st.sampled_from([1, 50])),
    )
    extent = draw(st.sampled_from([1, 17, small // 2]))
    return limits, MergeLimits(file_bytes=2 * small + draw(st.sampled_from([0, 33])), extent_bytes=extent)


sizes = st.one_of(st.integers(1, 30), st.integers(1, 700), st.sampled_from([1, 8, 64, 512, 1_000, 5_000]))
flushes = st.builds(
    lambda a, b, **more: Flushes(least_bytes=min(a, b), most_bytes=max(a, b), **more),
    sizes,
    sizes,
    count=st.integers(1, 60),
    every_s=st.sampled_from([0.1, 1.0, 20.0, 900.0]),
    dead_share=st.sampled_from([0.0, 0.0, 0.3, 0.9]),
)
living = st.builds(Flushes, st.integers(1, 60), st.sampled_from([0.1, 1.0, 20.0]), sizes, sizes, st.just(0.0)).map(
    lambda f: Flushes(f.count, f.every_s, min(f.least_bytes, f.most_bytes), max(f.least_bytes, f.most_bytes), 0.0)
)
deaths = st.builds(Deaths, st.sampled_from([0.1, 0.5, 1.0]), st.sampled_from([0.01, 0.3, 0.6, 1.0]))
idle = st.sampled_from([100.0, 700.0, ALL_OLD_S])


class Story:
    """Flushes, deaths and idle times (seconds), with planning every 15 seconds of them."""

    def __init__(self, drawn: tuple[PolicyLimits, MergeLimits], partitions: int, seed: int, kept: float = 1.0) -> None:
        self.limits, merging = drawn
        self.rng = random.Random(seed)
        self.run = Simulation(self.limits, merging, partitions, self.rng, kept)
        self.now_s = self.planned_s = 0.0

    def tell(self, steps: list[Any]) -> None:
        for step in steps:
            match step:
                case Flushes():
                    for _ in range(step.count):
                        body = self.rng.randint(step.least_bytes, step.most_bytes)
                        self.run.flush(self.now_s, body, body - round(body * step.dead_share))
                        self.pass_time(step.every_s)
                case Deaths():
                    for file_id, file in list(self.run.files.items()):
                        if self.rng.random() < step.files:
                            self.run.expire(file_id, -(-int(file.facts.live_bytes * step.share * 100) // 100))
                case seconds:
                    self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s >= self.planned_s + 15:
            self.settle()

    def settle(self) -> None:
        """Plan until nothing is left to do, as the planner does in its next turns."""
        self.planned_s = self.now_s
        turns_max = LAST_LEVEL + 1 + len(self.run.files)
        turns = 0
        while self.run.plan(self.now_s):
            turns += 1
            assert turns <= turns_max, "it never ends"

    def climbs(self, smallest_bytes: int | None) -> int:
        """Return how often a file of the last level that is so small is merged again."""
        return write_bound(self.limits, smallest_bytes or self.limits.small_bytes) - LAST_LEVEL - 1

    def spill(self) -> float:
        """Return what the rests of large jobs cost at the most, of each byte: rest times climbs, by the job's bytes."""
        worst, size = 0.0, self.limits.tier
        while size < self.limits.small_bytes * self.limits.tier:
            rest = min(size, self.limits.small_bytes) - 1
            worst = max(worst, rest * self.climbs(rest) / (self.run.merging.file_bytes + rest))
            size *= self.limits.tier
        return worst

    def check_few_files(self) -> None:
        """Do the same as the docs have it: by count where files are small, by bytes where they are not."""
        turns_max, jobs = 2 + LAST_LEVEL + len(self.run.files), -1
        while jobs != self.run.jobs:  # what was made becomes old in its turn
            jobs, turns_max = self.run.jobs, turns_max - 1
            assert turns_max >= 0, "it never ends"
            self.pass_time(ALL_OLD_S)
        live = sum(file.facts.live_bytes for file in self.run.files.values())
        by_level = [sum(f.facts.level == level for f in self.run.files.values()) for level in range(LAST_LEVEL + 1)]
        assert by_level[0] <= 1, "one alone has nothing to be merged with"
        assert by_level[1] == 0
        assert by_level[2] <= live / self.limits.small_bytes + (self.limits.tier - 1) * self.climbs(1)


@pytest.mark.requirement("W10")
@settings(max_examples=examples(150), deadline=None)
@given(policies(), st.lists(st.one_of(living, idle), min_size=1, max_size=6), st.integers(1, 9), st.integers(0, 2**32))
def test_without_expiration_a_byte_is_written_once_per_class_that_its_file_can_climb(
    drawn: tuple[PolicyLimits, MergeLimits], steps: list[Any], partitions: int, seed: int
) -> None:
    story = Story(drawn, partitions, seed)
    story.tell(steps)
    story.check_few_files()
    run = story.run
    assert run.most_writes <= 1 + LAST_LEVEL + story.climbs(run.smallest_file)
    average = run.written_bytes / max(run.arrived_bytes, 1)
    assert average <= 1 + LAST_LEVEL + max(story.spill(), story.climbs(run.smallest_job))
    event(f"climbed {max(run.most_writes - LAST_LEVEL - 1, 0)} classes")


@pytest.mark.requirement("W10")
@settings(max_examples=examples(150), deadline=None)
@given(
    policies(),
    st.lists(st.one_of(flushes, flushes, deaths, idle), min_size=1, max_size=8),
    st.integers(1, 9),
    st.sampled_from([1.0, 0.99, 0.9, 0.5, 0.1]),
    st.integers(0, 2**32),
)
def test_expired_or_compressed_bytes_pay_for_rewritten_bytes(
    drawn: tuple[PolicyLimits, MergeLimits], steps: list[Any], partitions: int, kept: float, seed: int
) -> None:
    story = Story(drawn, partitions, seed, kept)
    story.tell(steps)
    story.check_few_files()
    run = story.run
    bound = 1 + LAST_LEVEL + 2 * story.climbs(run.smallest_file)
    assert run.written_bytes <= bound * run.arrived_bytes + 4 * run.lost_bytes


def test_a_jobs_output_is_large_files_and_a_rest() -> None:
    limits = MergeLimits(file_bytes=64 * MIB, extent_bytes=8 * MIB)
    assert file_sizes(100, 5, limits) == [100]
    assert file_sizes(257 * MIB, 1_000_000, limits)[-1] < 2 * MIB
    for total in (1, 64 * MIB, 65 * MIB, 300 * MIB):
        for partitions in (1, 7, 100):
            made = file_sizes(total, partitions, limits)
            assert sum(made) == total
            assert all(64 * MIB <= size < 72 * MIB for size in made[:-1])


@pytest.mark.requirement("W10")
@pytest.mark.parametrize("flush_bytes", [2_000, MIB, int(2.1 * MIB), int(8.05 * MIB), 30 * MIB, 65 * MIB])
def test_real_limits_and_sizes_that_leave_small_rests(flush_bytes: int) -> None:
    """8.05 MiB: eight of them are one file and a rest of 0.4 MiB."""
    story = Story((PolicyLimits(), MergeLimits()), 50, 0)
    story.tell([Flushes(1_500, 2.0, flush_bytes, flush_bytes, 0.0)])
    story.check_few_files()
    run = story.run
    assert run.most_writes <= 1 + LAST_LEVEL + story.climbs(run.smallest_file)
    assert run.written_bytes <= (3.4 if flush_bytes >= MIB else 6) * run.arrived_bytes
    assert story.spill() <= 0.4
