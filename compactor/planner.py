"""Selects the files to merge next: a job of kind "plan", run by one worker every few seconds, creates their jobs.

Place: in the job loop (jobs/runner.py). The policy is pure, file facts in, jobs out;
load/benchmarks/compaction_simulation.py simulates a day of it. Large jobs are reserved for Spark for a limited time:
jobs that Spark does not finish or has no room for are then open to all workers.

    inline   bytes in the metastore: moved to level 1 after seconds, however few they are, never by Spark
    level 0  as agents flushed them: small, every partition in a file
       │     many, or much, or old: copied together, no record opened
    level 1  each partition's bytes are contiguous
       │     many, or much, or old: records opened, batches merged and recompressed
    level 2  large extents of large batches; small files are merged again if files of
             similar size are many or add up to a large one; others if much of them is dead

Invariant of the policy: a file is in at most one job. Bytes are written once per level, and bytes that reach the
last level in a small file once more per size class that they pass: `write_bound`. Merged small files become one
file, of a higher class or large, so no small rest is merged again and again. The rewriting of partly dead files is
limited by the bytes it frees (bounds: docs/operate/COMPACTION.md; checked by
tests/properties/test_compaction_policy.py). Any set of files may be merged, because offsets never change; old files
are merged first, so that an extent's inputs are neighbours.
Jobs that wait for Spark do not block others.
Invariant of the job: it plans under its lease, and leaves out files of unfinished jobs, and files that hold what a
pass of cleaning by key reads, or waits to read, except those that are WAIT_FOR_CLEANING_MS old. If two planners run
at the same time for a moment, their jobs may share files: the swap lets one of them win, extent by extent.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby

from headrace.compactor.cleaning.policy import decode_cleaning, ends_of
from headrace.compactor.compact import CompactionMetrics
from headrace.compactor.plan import CompactionJob, decode_job, encode
from headrace.config.settings import Settings
from headrace.jobs.kinds import CLEAN, CLEAN_LARGE, CLEAN_NEXT, COMPACT, COMPACT_LARGE
from headrace.jobs.lease import Lease
from headrace.metastore.api.compaction import FileFacts
from headrace.metastore.api.jobs import Job, NewJob
from headrace.metastore.api.metastore import Metastore
from headrace.storage.file_id import is_inline

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
    inline_held_bytes: int = 512 * 1024 * 1024
    """Move all that waits once it has so many bytes, also what is younger."""
    inline_age_ms: int = 30_000
    """Inline files are moved from this age on; those that are younger, when they hold INLINE_BYTES, or are asked
    for."""
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
            inline_held_bytes=settings.low_latency_held_max_bytes // 2,
            inline_age_ms=settings.low_latency_move_ms,
            large_bytes=settings.compaction_spark_min_bytes,
            large_wait_ms=settings.compaction_spark_max_wait_ms,
        )


INLINE_BYTES = 32 * 1024 * 1024
INLINE_JOB_FILES = 2_048
"""Rows are read many at a time, so a job may have many more of them than objects."""
_OLD_FACTOR = (1, 6)
"""Factors for old files by level: the factor on `max_age_ms` for its files."""


def choose(files: Iterable[FileFacts], busy: frozenset[uuid.UUID], limits: PolicyLimits) -> list[CompactionJob]:
    """Jobs over `files`, without files that are `busy`; no file is in two jobs."""
    known = [file for file in files if file.file_id not in busy]
    jobs = _move(sorted(file for file in known if is_inline(file.file_id)), limits)
    free = sorted(file for file in known if file.age_ms >= limits.min_age_ms and not is_inline(file.file_id))
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


def _move(files: list[FileFacts], limits: PolicyLimits) -> list[CompactionJob]:
    """Groups of inline files, of which the first is old or which hold enough."""
    return [
        CompactionJob(tuple(file.file_id for file in run), level=1)
        for run in _cut(files, INLINE_JOB_FILES, limits.job_bytes[0])
        if run[0].age_ms >= limits.inline_age_ms or _live(run) >= INLINE_BYTES
    ]


def _climb(level: int, files: list[FileFacts], limits: PolicyLimits) -> list[CompactionJob]:
    """Groups of neighbours, full ones at once; the rest if it is old, or has many dead bytes."""
    jobs = []
    runs = _cut(files, limits.job_files, limits.job_bytes[level])
    for run in runs:
        is_full = len(run) >= limits.fan_in or _live(run) >= limits.job_bytes[level]
        is_old = run[0].age_ms >= limits.max_age_ms * _OLD_FACTOR[level] and len(run) > 1 - level
        if is_full or is_old or any(_mostly_dead(file, limits) for file in run):
            jobs.append(_compaction_job(run, level + 1, limits))
    return jobs


def _consolidate(files: list[FileFacts], limits: PolicyLimits) -> list[CompactionJob]:
    """Files of the last level with many dead bytes, or many small ones."""
    jobs = [
        _compaction_job(run, LAST_LEVEL, limits)
        for run in _cut(
            [file for file in files if _mostly_dead(file, limits)], limits.job_files, limits.job_bytes[LAST_LEVEL]
        )
    ]
    small = [f for f in files if f.live_bytes < limits.small_bytes and not _mostly_dead(f, limits)]
    of_class: Callable[[FileFacts], int] = lambda file: _size_class(file.live_bytes, limits)  # noqa: E731
    for _, alike in groupby(sorted(small, key=lambda file: (of_class(file), file.file_id)), key=of_class):
        jobs += [
            _compaction_job(run, LAST_LEVEL, limits)
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


def _compaction_job(files: Sequence[FileFacts], level: int, limits: PolicyLimits) -> CompactionJob:
    is_large = 0 < limits.large_bytes <= _live(files)
    return CompactionJob(tuple(file.file_id for file in files), level, is_large)


logger = logging.getLogger(__name__)

_KINDS = (COMPACT.name, COMPACT_LARGE.name, CLEAN.name, CLEAN_LARGE.name, CLEAN_NEXT.name)
_HOUR_MS = 3_600_000
WAIT_FOR_CLEANING_MS = (_HOUR_MS, 2 * _HOUR_MS, 24 * _HOUR_MS)
"""Longest wait for a cleaning, in ms, by level: files of this age are merged although a partition in them is being
cleaned; swaps let one of both win.
"""
ASKED_MS = 60_000
"""How long a wish to move all inline files holds: more than the longest pause between two plans and a merge."""
FILES_PER_LEVEL = 5_000
UNFINISHED_MAX = 64
"""Number of waiting jobs above which the workers are behind, and new plans would be out of date when they run."""
SPARK_ATTEMPTS = 3
"""A large job that was claimed this often without being finished is moved from Spark to the workers."""


@dataclass(slots=True)
class ScanPlace:
    """How far the files were looked through, from one run of a worker to its next."""

    next_file: uuid.UUID = field(default=uuid.UUID(int=0))


class Planner:
    """One job of kind "plan". `place` is moved."""

    def __init__(
        self, metastore: Metastore, limits: PolicyLimits, metrics: CompactionMetrics, place: ScanPlace | None = None
    ) -> None:
        self._metastore, self._limits, self._metrics = metastore, limits, metrics
        self._place = place or ScanPlace()

    async def handle(self, job: Job, lease: Lease) -> None:
        """Enqueue the jobs that the policy selects. FencedError if the lease was lost."""
        unfinished = await self._metastore.compaction.unfinished_payloads(*_KINDS)
        if unfinished[_KINDS.index(COMPACT_LARGE.name)]:
            await self._hand_over(lease)
            unfinished = await self._metastore.compaction.unfinished_payloads(*_KINDS)
        ours, sparks = [list(map(decode_job, payloads)) for payloads in unfinished[:2]]
        if len(ours) >= UNFINISHED_MAX:
            return
        limits = self._limits if len(sparks) < UNFINISHED_MAX else replace(self._limits, large_bytes=0)
        if await self._are_inline_files_wanted():
            limits = replace(limits, inline_age_ms=0)
        cleaned = ends_of(map(decode_cleaning, chain(*unfinished[2:])))
        in_passes = await self._metastore.cleaning.files_of_parts(sorted(cleaned.items())) if cleaned else set()
        left_alone = sum(len(other.file_ids) for other in sparks) + len(in_passes)
        waiting = await self._metastore.compaction.waiting_files(self._place.next_file, FILES_PER_LEVEL + left_alone)
        counted = Counter(file.level for file in waiting.files)
        for level in range(LAST_LEVEL + 1):
            self._metrics.waiting.labels(str(level)).set(counted[level])
        patient = {file.file_id for file in waiting.files if file.age_ms < WAIT_FOR_CLEANING_MS[file.level]}
        busy = {file_id for other in ours + sparks for file_id in other.file_ids} | (in_passes & patient)
        chosen = choose(waiting.files, frozenset(busy), limits)
        if chosen:
            await self._metastore.jobs.enqueue_jobs([_job(wanted) for wanted in chosen], by=lease.token)
            for wanted in chosen:
                self._metrics.planned.labels(str(wanted.level)).inc()
        self._place.next_file = waiting.next_scan

    async def _are_inline_files_wanted(self) -> bool:
        """Return whether all inline files are to be moved now: a scan waits for it, or they take much of their
        room."""
        state = await self._metastore.inline.inline_state()
        is_asked = 0 <= state.asked_ms < ASKED_MS
        return is_asked or state.held_bytes >= self._limits.inline_held_bytes

    async def _hand_over(self, lease: Lease) -> None:
        """Move jobs that Spark did not finish to the workers: at once if Spark gets no jobs any more."""
        handed = await self._metastore.jobs.hand_over_jobs(
            COMPACT_LARGE.name,
            COMPACT.name,
            after_ms=self._limits.large_wait_ms if self._limits.large_bytes else 0,
            attempts=SPARK_ATTEMPTS,
            by=lease.token,
        )
        if handed:
            logger.warning("large jobs moved from spark to the workers: jobs=%d", handed)
            self._metrics.handed_over.inc(handed)


def _job(wanted: CompactionJob) -> NewJob:
    """Level 1 has priority, because most rows and files are at level 0."""
    kind = COMPACT_LARGE if wanted.is_large else COMPACT
    return kind.once(f"{wanted.level}:{wanted.file_ids[0]}", encode(wanted), priority=1 - wanted.level)
