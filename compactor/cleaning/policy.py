"""Decide when a partition's active part ends, and when a partition is cleaned by key. Pure: facts in, decisions out.

Place: asked by the planner (planner.py), which acts in the metastore.
Invariant: nothing is cleaned before min.compaction.lag.ms (the facts end there), nor in the active part. A pass that
the dirty ratio starts writes at most 1 / ratio bytes for each dirty byte, because it rewrites no more than clean and
dirty part together: `write_bound`. Other passes are as rare as max.compaction.lag.ms and delete.retention.ms say.
Source: KIP-58, KIP-354; Kafka's LogCleanerManager.grabFilthiestCompactedLog and UnifiedLog.maybeRoll.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from headrace.compactor.cleaning.key_map import BYTES_PER_KEY
from headrace.config.settings import Settings
from headrace.metastore.api.cleaning import CleaningState, RollTarget

UNCLEANABLE_RETRY_MS = 3_600_000
"""How long a partition that could not be cleaned is left out."""
JOB_BYTES = 256 * 1024 * 1024
JOB_PARTITIONS = 200


class CleaningRule(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic's configs say. Times in ms, sizes in bytes."""

    min_lag_ms: int = 0
    max_lag_ms: int = 2**63 - 1
    dirty_ratio: float = 0.5
    delete_retention_ms: int = 86_400_000
    segment_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824


class SparkLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits from which on partitions are for Spark."""

    large_bytes: int = 0
    """compaction.spark.min.bytes; 0: none is, and no worker leaves one to Spark."""
    large_wait_ms: int = 3_600_000
    """How long Spark may take; then the workers clean as much as they can."""
    keys_max: int = 1 << 62
    """How many keys a worker's key map holds."""

    @classmethod
    def of(cls, settings: Settings) -> SparkLimits:
        """Read compaction.spark.* and log.cleaner.dedupe.buffer.size."""
        return cls(
            large_bytes=settings.compaction_spark_min_bytes,
            large_wait_ms=settings.compaction_spark_max_wait_ms,
            keys_max=settings.log_cleaner_dedupe_buffer_size // BYTES_PER_KEY,
        )


class CleaningTask(msgspec.Struct, frozen=True):
    """One partition of a job: clean it from the log start to `end`."""

    partition_key: int
    end: int
    delete_retention_ms: int


class CleaningJob(msgspec.Struct, frozen=True):
    """Payload of a job of kind "clean" or "clean-large"."""

    tasks: tuple[CleaningTask, ...]
    is_large: bool = False
    """Made for Spark: if it moved to the workers, they do what they can."""


def encode_cleaning(job: CleaningJob) -> bytes:
    """JSON, for a job's payload."""
    return msgspec.json.encode(job)


def decode_cleaning(payload: bytes) -> CleaningJob:
    """Return what `encode_cleaning` made of a job."""
    return msgspec.json.decode(payload, type=CleaningJob)


def cleaning_rule(value: Callable[[str], str]) -> CleaningRule | None:
    """The rule of a topic with these configs; None if its cleanup.policy does not include compact."""
    if "compact" not in {item.strip() for item in value("cleanup.policy").split(",")}:
        return None
    return CleaningRule(
        min_lag_ms=int(value("min.compaction.lag.ms")),
        max_lag_ms=int(value("max.compaction.lag.ms")),
        dirty_ratio=float(value("min.cleanable.dirty.ratio")),
        delete_retention_ms=int(value("delete.retention.ms")),
        segment_ms=int(value("segment.ms")),
        segment_bytes=int(value("segment.bytes")),
    )


def active_part(rule: CleaningRule, now_ms: int, state: CleaningState) -> RollTarget | None:
    """Return what to store of the active part: that it ends, or since when it has records; None if nothing is new."""
    if state.active_since_ms is None:
        return None
    is_old = now_ms - state.active_since_ms >= min(rule.segment_ms, rule.max_lag_ms)
    rolls = is_old or state.active_bytes >= rule.segment_bytes
    return RollTarget(state.partition_key, state.active_since_ms, rolls) if rolls or not state.is_noted else None


def overdue_ms(rule: CleaningRule, now_ms: int, state: CleaningState) -> int:
    """Return how long the first dirty record is beyond max.compaction.lag.ms; 0 if it is not."""
    if state.dirty_since_ms is None:
        return 0
    return max(now_ms - state.dirty_since_ms - rule.max_lag_ms, 0)


def read_bytes(state: CleaningState) -> int:
    """Return what a pass reads: the dirty part twice."""
    return 2 * state.dirty_bytes + state.clean_bytes


def dirty_share(state: CleaningState) -> float:
    """Dirty bytes of all cleanable bytes."""
    return state.dirty_bytes / (state.dirty_bytes + state.clean_bytes) if state.dirty_bytes else 0.0


def task(rule: CleaningRule, now_ms: int, state: CleaningState) -> CleaningTask | None:
    """The pass that the partition needs now, if it needs one."""
    if state.uncleanable_ms is not None and now_ms - state.uncleanable_ms < UNCLEANABLE_RETRY_MS:
        return None
    has_expired = state.horizon_ms is not None and state.horizon_ms <= now_ms
    if dirty_share(state) > rule.dirty_ratio or overdue_ms(rule, now_ms, state) or has_expired:
        end = max(state.cleanable_end, state.cleaned_offset)
        return CleaningTask(state.partition_key, end, rule.delete_retention_ms)
    return None


def is_for_spark(limits: SparkLimits, state: CleaningState) -> bool:
    """Return whether its dirty part may have more keys than a worker holds, and it has as many bytes as a large job.

    Of smaller ones a worker finds out by itself whether the keys fit: few offsets of a partition need not be new keys.
    """
    may_exceed = state.cleanable_end - state.cleaned_offset > limits.keys_max
    return may_exceed and 0 < limits.large_bytes <= state.dirty_bytes + state.clean_bytes


def write_bound(rule: CleaningRule) -> float:
    """Return how often a byte is written by passes that the dirty ratio starts, at most."""
    return 1 / rule.dirty_ratio if rule.dirty_ratio else float("inf")


def in_jobs(tasks: Iterable[tuple[CleaningTask, int]]) -> list[CleaningJob]:
    """(task, the bytes that it reads), grouped: a job takes many small partitions, or a large one."""
    jobs: list[list[CleaningTask]] = []
    room = 0
    for wanted, size_bytes in tasks:
        if not jobs or room < size_bytes or len(jobs[-1]) >= JOB_PARTITIONS:
            jobs.append([])
            room = JOB_BYTES
        jobs[-1].append(wanted)
        room -= size_bytes
    return [CleaningJob(tuple(tasks)) for tasks in jobs]


def ends_of(jobs: Iterable[CleaningJob]) -> dict[int, int]:
    """Return where the passes of these jobs end at most, by the partition keys that the jobs name."""
    ends: dict[int, int] = {}
    for wanted in (wanted for job in jobs for wanted in job.tasks):
        ends[wanted.partition_key] = max(wanted.end, ends.get(wanted.partition_key, 0))
    return ends
