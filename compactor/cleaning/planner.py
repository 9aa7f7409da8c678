"""Ends active parts, and creates jobs for partitions that need cleaning by key: a job of kind "plan-cleaning".

Place: in the job loop (runner.py), every log.cleaner.backoff.ms, in one worker at a time; policy.py decides.
Invariant: what decides is in the metadata log, never in a process's file: cleaning removes records. Partitions of
topics that are not compacted cost nothing. A partition is in one job at most, and in none while a merge may replace its
extents. Partitions with more keys than a worker may hold are reserved for Spark for a limited time. If two planners
run at the same time for a moment, swaps let one job win, extent by extent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Protocol

from headrace.compactor.cleaning.job import KIND as CLEAN
from headrace.compactor.cleaning.job import LARGE_KIND as CLEAN_LARGE
from headrace.compactor.cleaning.job import large_job
from headrace.compactor.cleaning.metrics import CleaningMetrics
from headrace.compactor.cleaning.policy import (
    CleaningJob,
    CleaningRule,
    CleaningTask,
    SparkLimits,
    active_part,
    cleaning_rule,
    decode_cleaning,
    dirty_share,
    encode_cleaning,
    in_jobs,
    is_for_spark,
    overdue_ms,
    partitions_of,
    task,
)
from headrace.compactor.compact import KIND as COMPACT
from headrace.compactor.compact import LARGE_KIND
from headrace.compactor.lease import Lease
from headrace.compactor.plan import CompactionJob, decode_job, encode
from headrace.metastore.api.cleaning import CleaningApi, CleaningQuery, CleaningState
from headrace.metastore.api.compaction import CompactionApi
from headrace.metastore.api.jobs import Job, JobApi, NewJob
from headrace.metastore.api.metadata_log import MetadataLogApi
from headrace.metastore.log.effective_configs import decided_topic_value
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.loading import load_image

logger = logging.getLogger(__name__)

PARTITIONS_PER_LOOK = 200
FILES_PER_MERGE = 256
UNFINISHED_MAX = 64
"""If more jobs than this wait, the workers are behind."""
SPARK_ATTEMPTS = 3
"""A job that Spark claimed this often without finishing it is moved to the workers."""


class CleaningPlannerApi(CleaningApi, CompactionApi, JobApi, MetadataLogApi, Protocol):
    """The part of the metastore that the planner needs."""


class CleaningPlanner:
    """Runs jobs of kind "plan-cleaning"."""

    def __init__(self, metastore: CleaningPlannerApi, metrics: CleaningMetrics) -> None:
        self._metastore, self._metrics = metastore, metrics
        self.is_enabled = True
        """log.cleaner.enable: of jobs that start from now on."""
        self.spark = SparkLimits()
        """The same."""

    async def handle(self, job: Job, lease: Lease) -> None:
        """Plan once. FencedError if the lease was lost."""
        if not self.is_enabled:
            return
        rules = compacted_partitions(await load_image(self._metastore))
        states: dict[int, CleaningState] = {}
        now_ms = 0
        for some in _chunks(rules, PARTITIONS_PER_LOOK):
            now_ms, found = await self._described(some, lease)
            states.update(found)
        self._show(rules, now_ms, states)
        unfinished, sparks = await self._unfinished()
        if sparks:
            await self._hand_over(lease)
            unfinished, sparks = await self._unfinished()
        if len(unfinished) < UNFINISHED_MAX:
            busy = partitions_of([*unfinished, *sparks])
            tasks = {
                key: wanted
                for key, state in states.items()
                if key not in busy and (wanted := task(rules[key], now_ms, state)) is not None
            }
            if tasks:
                await self._enqueue(tasks, states, lease)

    async def _unfinished(self) -> list[list[CleaningJob]]:
        """The workers' jobs, and Spark's."""
        found = await self._metastore.unfinished_payloads(CLEAN, CLEAN_LARGE)
        return [list(map(decode_cleaning, payloads)) for payloads in found]

    async def _described(self, rules: Mapping[int, CleaningRule], lease: Lease) -> tuple[int, dict[int, CleaningState]]:
        """(now, the states) after active parts that are old or large enough have ended."""
        now_ms, states = await self._states(rules)
        targets = [found for key in states if (found := active_part(rules[key], now_ms, states[key])) is not None]
        await self._metastore.roll_partitions(targets, by=lease.token)
        rolled = [target.partition_key for target in targets if target.rolls]
        if rolled:
            self._metrics.rolled.inc(len(rolled))
            now_ms, changed = await self._states({key: rules[key] for key in rolled})
            states |= changed
        return now_ms, states

    async def _states(self, rules: Mapping[int, CleaningRule]) -> tuple[int, dict[int, CleaningState]]:
        queries = [CleaningQuery(key, rule.min_lag_ms) for key, rule in rules.items()]
        now_ms, found = await self._metastore.describe_cleaning(queries)
        return now_ms, {state.partition_key: state for state in found}

    async def _enqueue(
        self, tasks: Mapping[int, CleaningTask], states: Mapping[int, CleaningState], lease: Lease
    ) -> None:
        """Jobs for these tasks, the dirtiest first; not for partitions in files that are being merged."""
        payloads = await self._metastore.unfinished_payloads(COMPACT, LARGE_KIND)
        merged = {file_id for payload in chain(*payloads) for file_id in decode_job(payload).file_ids}
        in_merges: set[int] = set()
        if merged:
            in_merges = await self._metastore.partitions_in_files(list(tasks), sorted(merged))
        unmerged = await self._merge_flushed([tasks[key] for key in tasks if key not in in_merges], lease)
        left = [key for key in tasks if key not in in_merges | unmerged]
        free = sorted(left, key=lambda key: -dirty_share(states[key]))
        large = {key for key in free if is_for_spark(self.spark, states[key])}
        ours = [key for key in free if key not in large]
        jobs = in_jobs((tasks[key], states[key].dirty_bytes + states[key].clean_bytes) for key in ours)
        if free:
            new = [*map(_job, jobs), *(large_job(tasks[key]) for key in free if key in large)]
            await self._metastore.enqueue_jobs(new, by=lease.token)
            self._metrics.planned.inc(len(free))

    async def _hand_over(self, lease: Lease) -> None:
        """Move jobs that Spark did not finish to the workers: at once if Spark gets no jobs any more."""
        handed = await self._metastore.hand_over_jobs(
            CLEAN_LARGE,
            CLEAN,
            after_ms=self.spark.large_wait_ms if self.spark.large_bytes else 0,
            attempts=SPARK_ATTEMPTS,
            by=lease.token,
        )
        if handed:
            logger.warning("cleaning jobs moved from spark to the workers: jobs=%d", handed)
            self._metrics.handed_over.inc(handed)

    async def _merge_flushed(self, tasks: Sequence[CleaningTask], lease: Lease) -> set[int]:
        """Let files of level 0 be merged first, and return the partitions that they hold back.

        A rebuild of the index recognises a flushed batch by its copy in a merged file (rebuild_place.py); of one that
        was cleaned there may be nothing left to recognise.
        """
        if not tasks:
            return set()
        found = await self._metastore.flushed_files([(wanted.partition_key, wanted.end) for wanted in tasks])
        files = sorted({file_id for _, file_id in found})
        merges = [
            CompactionJob(tuple(files[at : at + FILES_PER_MERGE]), 1) for at in range(0, len(files), FILES_PER_MERGE)
        ]
        if merges:
            new = [NewJob(COMPACT, f"1:{merge.file_ids[0]}", encode(merge), priority=1) for merge in merges]
            await self._metastore.enqueue_jobs(new, by=lease.token)
        return {key for key, _ in found}

    def _show(self, rules: Mapping[int, CleaningRule], now_ms: int, states: Mapping[int, CleaningState]) -> None:
        known = [(rules[key], state) for key, state in states.items()]
        self._metrics.uncleanable.set(sum(state.uncleanable_ms is not None for _, state in known))
        self._metrics.delay_seconds.set(max((overdue_ms(rule, now_ms, s) for rule, s in known), default=0) / 1000)
        self._metrics.dirty_share.set(round(100 * max((dirty_share(state) for _, state in known), default=0)))


def compacted_partitions(image: MetadataImage) -> dict[int, CleaningRule]:
    """The rule of each partition of a compacted topic, by partition key."""
    found: dict[int, CleaningRule] = {}
    for topic in image.topics_by_name.values():

        def value(name: str, topic_name: str = topic.name) -> str:
            decided = decided_topic_value(image, topic_name, name)
            assert decided is not None, f"a process's file could decide about {name}"
            return decided

        rule = cleaning_rule(value)
        if rule is not None:
            found.update((key, rule) for index in topic.indexes if (key := topic.key(index)) is not None)
    return found


def _job(wanted: CleaningJob) -> NewJob:
    return NewJob(CLEAN, str(wanted.tasks[0].partition_key), encode_cleaning(wanted))


def _chunks(rules: Mapping[int, CleaningRule], size: int) -> Iterator[dict[int, CleaningRule]]:
    items = iter(rules.items())
    while chunk := dict(islice(items, size)):
        yield chunk
