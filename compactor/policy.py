"""Selects the files to merge next. Pure: file facts in, jobs out.

    level 0  as agents flushed them: small, every partition in a file
       │     many, or much, or old: copied together, no record opened
    level 1  each partition's bytes are contiguous
       │     many, or much, or old: records opened, batches merged and recompressed
    level 2  large extents of large batches; small files are merged again if files of
             similar size are many or add up to a large one; others if much of them is dead

Place: called by the planner (planner.py) every few seconds; load/benchmarks/compaction_simulation.py simulates a day of
it.
Invariant: a file is in at most one job. Bytes are written once per level, and bytes that reach the last level in a
small file once more per size class that they pass: `write_bound`. Merged small files become one file, of a higher
class or large, so no small rest is merged again and again. The rewriting of partly dead files is limited by the bytes
it frees (bounds: docs/operate/COMPACTION.md; checked by tests/properties/test_compaction_policy.py). Any set of files
may be merged, because offsets never change; old files are merged first, so that an extent's inputs are neighbours.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from headrace.compactor.plan import CompactionJob
from headrace.config.settings import Settings
from headrace.metastore.api.compaction import FileFacts

LAST_LEVEL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLimits:
    """Limits from which on a level is worth merging. Ages in ms; `job_*` limit one job's inputs."""

    min_age_ms: int = 30_000
    """Younger files are not merged: consumers near the log end read them from caches."""
    max_age_ms: int = 600_000
    """Files of level 0 are merged after at most this time, those of level 1 after six times this time."""
    fan_in: int = 32
    """This many files of level 0 or 1 are worth a job, regardless of their size."""
    job_files: int = 256
    job_bytes: tuple[int, ...] = (64 * 1024 * 1024, 256 * 1024 * 1024, 256 * 1024 * 1024)
    """Bytes of a job by level of the inputs; this many bytes are worth a job, regardless of the number of files."""
    small_bytes: int = 32 * 1024 * 1024
    """Files of the last level below this size are merged again; at most half of the target size of a merged file."""
    tier: int = 8
    """This many small files of similar size are worth a job, or fewer that hold `small_bytes` together."""
    dead_share: float = 0.5
    """A file is rewritten if more than this part of its batches is dead ..."""
    dead_bytes: int = 1024 * 1024
    """... and that is at least this many bytes."""
    large_bytes: int = 0
    """Jobs with this many live bytes are for Spark; 0: none."""
    large_wait_ms: int = 3_600_000
    """How long Spark may take for one; then all workers may take it."""

    @classmethod
    def of(cls, settings: Settings) -> PolicyLimits:
        """Read the settings compaction.*."""
        return cls(
            min_age_ms=settings.compaction_min_age_ms,
            max_age_ms=settings.compaction_max_age_ms,
            small_bytes=settings.compaction_file_bytes // 2,
            large_bytes=settings.compaction_spark_min_bytes,
            large_wait_ms=settings.compaction_spark_max_wait_ms,
        )


_OLD_FACTOR = (1, 6)
"""Factors for old files by level: the factor on `max_age_ms` for its files."""


def choose(files: Iterable[FileFacts], busy: frozenset[uuid.UUID], limits: PolicyLimits) -> list[CompactionJob]:
    """Jobs over `files`, without files that are `busy`; no file is in two jobs."""
    free = sorted(file for file in files if file.file_id not in busy and file.age_ms >= limits.min_age_ms)
    jobs: list[CompactionJob] = []
    for level in range(LAST_LEVEL):
        jobs += _climb(level, [file for file in free if file.level == level], limits)
    jobs += _consolidate([file for file in free if file.level == LAST_LEVEL], limits)
    return jobs


def write_bound(limits: PolicyLimits, smallest_bytes: int) -> int:
    """Return how often any byte is written at most, including its flush, while no data expires.

    `smallest_bytes`: the smallest file that merges of the last level write.
    """
    if smallest_bytes >= limits.small_bytes:
        return 1 + LAST_LEVEL
    return 2 + LAST_LEVEL + _size_class(limits.small_bytes - 1, limits) - _size_class(smallest_bytes, limits)


def _climb(level: int, files: list[FileFacts], limits: PolicyLimits) -> list[CompactionJob]:
    """Groups of neighbours, full ones at once; the rest if it is old, or has many dead bytes."""
    jobs = []
    runs = _cut(files, limits.job_files, limits.job_bytes[level])
    for run in runs:
        is_full = len(run) >= limits.fan_in or _live(run) >= limits.job_bytes[level]
        is_old = run[0].age_ms >= limits.max_age_ms * _OLD_FACTOR[level] and len(run) > 1 - level
        if is_full or is_old or any(_mostly_dead(file, limits) for file in run):
            jobs.append(_job(run, level + 1, limits))
    return jobs


def _consolidate(files: list[FileFacts], limits: PolicyLimits) -> list[CompactionJob]:
    """Files of the last level with many dead bytes, or many small ones."""
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
    """Groups of neighbours, each closed at this many files or live bytes."""
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
    """Sizes of one class differ by less than a factor of `tier`; `tier` files of a class make one of a higher
    class."""
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
