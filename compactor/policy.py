"""Which files are merged next. Pure: facts in, jobs out.

    level 0  as agents flushed them: small, every partition in a file
       │     many, or much, or old: copied together, no record opened
    level 1  each partition's bytes side by side
       │     many, or much, or old: records opened, batches merged and recompressed
    level 2  large extents of large batches; small files are merged again when those of
             a like size are many or make up a large one; others when much in them is dead

Place: asked by the planner (planner.py) every few seconds; load/compaction_simulation.py runs a day of it.
Invariant: a file is in one job at the most. Bytes are written once per level, and those that reach the
last one in a small file once more per size class that they climb: `write_bound`. Small files merged become
one file, of a higher class or large, so there is never a small rest that is merged for ever. What dies is
paid for by what it frees (docs/COMPACTION.md has the bounds, tests/properties/test_compaction_policy.py
holds them). Any set of files may be merged, since offsets never change; old ones go first, so that an
extent's inputs are neighbours. If the process dies here nothing is lost: no state.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from headrace.compactor.plan import CompactionJob
from headrace.metastore.compaction import FileFacts

LAST_LEVEL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLimits:
    """When a level is worth merging. Ages in ms; `job_*` bound one job's inputs."""

    min_age_ms: int = 30_000
    """Younger files are left alone: tail readers have them in their caches."""
    max_age_ms: int = 600_000
    """Files of level 0 are merged at the latest after this, those of level 1 after six times as long."""
    fan_in: int = 32
    """So many files of level 0 or 1 are worth a job, however small they are."""
    job_files: int = 256
    job_bytes: tuple[int, ...] = (64 * 1024 * 1024, 256 * 1024 * 1024, 256 * 1024 * 1024)
    """By level of the inputs; so many bytes are worth a job, however few files they are."""
    small_bytes: int = 32 * 1024 * 1024
    """Files of the last level below this are merged again; half of what a merge makes a file of, at the most."""
    tier: int = 8
    """So many small files of a like size are worth a job, or fewer that hold `small_bytes` together."""
    dead_share: float = 0.5
    """A file is rewritten when more than this part of its batches is dead ..."""
    dead_bytes: int = 1024 * 1024
    """... and that is at least this much."""
    large_bytes: int = 0
    """Jobs with so many live bytes are for Spark; 0: none is."""
    large_wait_ms: int = 3_600_000
    """Spark has so long to finish one; then it is anybody's."""


_OLD_FACTOR = (1, 6)
"""By level: how many times `max_age_ms` files of it may wait."""


def choose(files: Iterable[FileFacts], busy: frozenset[uuid.UUID], limits: PolicyLimits) -> list[CompactionJob]:
    """Jobs over `files` but for those that are `busy` already; no file stands in two of them."""
    free = sorted(file for file in files if file.file_id not in busy and file.age_ms >= limits.min_age_ms)
    jobs: list[CompactionJob] = []
    for level in range(LAST_LEVEL):
        jobs += _climb(level, [file for file in free if file.level == level], limits)
    jobs += _consolidate([file for file in free if file.level == LAST_LEVEL], limits)
    return jobs


def write_bound(limits: PolicyLimits, smallest_bytes: int) -> int:
    """How often any byte is written at the most, its flush included, while nothing dies.

    `smallest_bytes`: of the files that merges of the last level make.
    """
    if smallest_bytes >= limits.small_bytes:
        return 1 + LAST_LEVEL
    return 2 + LAST_LEVEL + _size_class(limits.small_bytes - 1, limits) - _size_class(smallest_bytes, limits)


def _climb(level: int, files: list[FileFacts], limits: PolicyLimits) -> list[CompactionJob]:
    """Runs of neighbours, full ones at once; what is left over when it is old, or holds much that is dead."""
    jobs = []
    runs = _cut(files, limits.job_files, limits.job_bytes[level])
    for run in runs:
        is_full = len(run) >= limits.fan_in or _live(run) >= limits.job_bytes[level]
        is_old = run[0].age_ms >= limits.max_age_ms * _OLD_FACTOR[level] and len(run) > 1 - level
        if is_full or is_old or any(_mostly_dead(file, limits) for file in run):
            jobs.append(_job(run, level + 1, limits))
    return jobs


def _consolidate(files: list[FileFacts], limits: PolicyLimits) -> list[CompactionJob]:
    """Files of the last level that hold much dead, or are small and many."""
    jobs = [
        _job(run, LAST_LEVEL, limits)
        for run in _cut(
            [file for file in files if _mostly_dead(file, limits)], limits.job_files, limits.job_bytes[LAST_LEVEL]
        )
    ]
    small = [f for f in files if f.live_bytes < limits.small_bytes and not _mostly_dead(f, limits)]
    of_class: Callable[[FileFacts], int] = lambda file: _size_class(file.live_bytes, limits)  # noqa: E731
    for _, alike in groupby(sorted(small, key=lambda file: (of_class(file), file.file_id)), key=of_class):
        jobs += [
            _job(run, LAST_LEVEL, limits)
            for run in _cut(list(alike), limits.tier, limits.small_bytes)
            if len(run) == limits.tier or _live(run) >= limits.small_bytes
        ]
    return jobs


def _cut(files: Sequence[FileFacts], job_files: int, job_bytes: int) -> list[list[FileFacts]]:
    """Neighbours together, each run closed when it holds so many files or live bytes."""
    runs: list[list[FileFacts]] = []
    room = 0
    for file in files:
        if not runs or len(runs[-1]) >= job_files or room <= 0:
            runs.append([])
            room = job_bytes
        runs[-1].append(file)
        room -= file.live_bytes
    return runs


def _size_class(size_bytes: int, limits: PolicyLimits) -> int:
    """Sizes of one class differ by less than `tier` times; a tier of them makes one of a higher class."""
    size_class = 0
    while size_bytes >= limits.tier:
        size_bytes //= limits.tier
        size_class += 1
    return size_class


def _mostly_dead(file: FileFacts, limits: PolicyLimits) -> bool:
    dead = file.body_bytes - file.live_bytes
    return dead >= limits.dead_bytes and dead > limits.dead_share * file.body_bytes


def _live(files: Iterable[FileFacts]) -> int:
    return sum(file.live_bytes for file in files)


def _job(files: Sequence[FileFacts], level: int, limits: PolicyLimits) -> CompactionJob:
    is_large = 0 < limits.large_bytes <= _live(files)
    return CompactionJob(tuple(file.file_id for file in files), level, is_large)
