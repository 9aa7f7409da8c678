"""Ends active parts, and creates jobs for partitions that need cleaning by key: a job of kind "plan-cleaning".

Place: in the job loop (runner.py), every log.cleaner.backoff.ms, in one worker at a time; policy.py decides.
Invariant: what decides is in the metadata log, never in a process's file: cleaning removes records. Partitions of
topics that are not compacted cost nothing. A partition is in one job at most. Merges and passes are not planned at the
same time where they could meet: below the end of a pass. A pass that meets unfinished merges waits until they have
ended, and meanwhile no merge is planned there (../planner.py); after RESERVED_MS it runs in any case, and if a merge is
still there, swaps let one of them win, extent by extent. Partitions with more keys than a worker may hold are reserved
for Spark for a limited time.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import TypeVar

import msgspec

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
    ends_of,
    in_jobs,
    is_for_spark,
    overdue_ms,
    read_bytes,
    task,
)
from headrace.compactor.plan import CompactionJob, decode_job, encode
from headrace.jobs.kinds import CLEAN, CLEAN_LARGE, CLEAN_NEXT, COMPACT, COMPACT_LARGE, JobKind
from headrace.jobs.lease import Lease
from headrace.metastore.api.cleaning import CleaningQuery, CleaningState
from headrace.metastore.api.jobs import Job, NewJob
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.log.effective_configs import decided_topic_value
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.snapshot import load_image

T = TypeVar("T")
logger = logging.getLogger(__name__)

PARTITIONS_PER_LOOK = 200
"""Partitions of one call to the metastore: it reads their extents within the statement's limit."""
FILES_PER_MERGE = 256
UNFINISHED_MAX = 64
"""Number of waiting jobs above which the workers are behind."""
RESERVED_MS = 120_000
"""How long a pass waits for merges that were planned before it, at most."""
SPARK_ATTEMPTS = 3
"""A job that Spark claimed this often without finishing it is moved to the workers."""


class CleaningPlanner:
    """One job of kind "plan-cleaning"."""

    def __init__(
        self,
        metastore: Metastore,
        spark: SparkLimits,
        metrics: CleaningMetrics,
        held: dict[int, int],
        *,
        is_enabled: bool = True,
    ) -> None:
        """`held`: since when files of level 0 hold passes back, by partition key; kept from one run of a worker to its
        next. `is_enabled`: log.cleaner.enable.
        """
        self._metastore, self._spark, self._metrics = metastore, spark, metrics
        self._held, self._is_enabled = held, is_enabled

    async def handle(self, job: Job, lease: Lease) -> None:
        """Plan once. FencedError if the lease was lost."""
        await self._let_reserved_go(lease)
        if not self._is_enabled:
            return
        rules = compacted_partitions(await load_image(self._metastore.cluster))
        states: dict[int, CleaningState] = {}
        now_ms = 0
        for some in _chunks(rules, PARTITIONS_PER_LOOK):
            now_ms, found = await self._described(some, lease)
            states.update(found)
        self._show(rules, now_ms, states)
        unfinished, sparks, reserved = await self._unfinished()
        if sparks:
            await self._hand_over(lease)
            unfinished, sparks, reserved = await self._unfinished()
        if len(unfinished) + len(reserved) < UNFINISHED_MAX:
            busy = ends_of([*unfinished, *sparks, *reserved])
            tasks = {
                key: wanted
                for key, state in states.items()
                if key not in busy and (wanted := task(rules[key], now_ms, state)) is not None
            }
            if tasks:
                await self._enqueue(tasks, states, now_ms, lease)

    async def _let_reserved_go(self, lease: Lease) -> None:
        """Give passes that waited for merges to the workers: all once no merge is left that any of them met."""
        (payloads,) = await self._metastore.compaction.unfinished_payloads(CLEAN_NEXT.name)
        if not payloads:
            return
        ends = [(task.partition_key, task.end) for payload in payloads for task in decode_cleaning(payload).tasks]
        merged = await self._in_merges()
        meets = merged and await self._metastore.cleaning.parts_in_files(ends, sorted(merged))
        await self._metastore.jobs.hand_over_jobs(
            CLEAN_NEXT.name, CLEAN.name, after_ms=RESERVED_MS if meets else 0, attempts=SPARK_ATTEMPTS, by=lease.token
        )

    async def _unfinished(self) -> list[list[CleaningJob]]:
        """The workers' jobs, Spark's, and those that wait for merges."""
        found = await self._metastore.compaction.unfinished_payloads(CLEAN.name, CLEAN_LARGE.name, CLEAN_NEXT.name)
        return [list(map(decode_cleaning, payloads)) for payloads in found]

    async def _described(self, rules: Mapping[int, CleaningRule], lease: Lease) -> tuple[int, dict[int, CleaningState]]:
        """(now, the states) after active parts that are old or large enough have ended."""
        now_ms, states = await self._states(rules)
        targets = [found for key in states if (found := active_part(rules[key], now_ms, states[key])) is not None]
        await self._metastore.cleaning.roll_partitions(targets, by=lease.token)
        rolled = [target.partition_key for target in targets if target.rolls]
        if rolled:
            self._metrics.rolled.inc(len(rolled))
            now_ms, changed = await self._states({key: rules[key] for key in rolled})
            states |= changed
        return now_ms, states

    async def _states(self, rules: Mapping[int, CleaningRule]) -> tuple[int, dict[int, CleaningState]]:
        queries = [CleaningQuery(key, rule.min_lag_ms) for key, rule in rules.items()]
        now_ms, found = await self._metastore.cleaning.describe_cleaning(queries)
        return now_ms, {state.partition_key: state for state in found}

    async def _enqueue(
        self, wanted: Mapping[int, CleaningTask], states: Mapping[int, CleaningState], now_ms: int, lease: Lease
    ) -> None:
        """Enqueue up to UNFINISHED_MAX jobs for these tasks, the dirtiest first."""
        merged = await self._in_merges()
        for key in self._held.keys() - wanted.keys():
            del self._held[key]
        first = sorted(wanted, key=lambda key: -dirty_share(states[key]))
        room = UNFINISHED_MAX
        for some in _chunks({key: wanted[key] for key in first}, PARTITIONS_PER_LOOK):
            room -= await self._enqueue_some(some, states, merged, now_ms, lease, room)
            if room <= 0:
                return

    async def _enqueue_some(
        self,
        wanted: Mapping[int, CleaningTask],
        states: Mapping[int, CleaningState],
        merged: set[uuid.UUID],
        now_ms: int,
        lease: Lease,
        room: int,
    ) -> int:
        """Enqueue up to `room` jobs, after the merges of files that hold what a pass would read, which are
        added to `merged`; how many.
        """
        readable = await self._without_damage(wanted, lease)
        tasks = self._allowed(readable, states, await self._merge_flushed(readable, merged, lease), now_ms)
        ends = [(key, task.end) for key, task in tasks.items()]
        in_merges = await self._metastore.cleaning.parts_in_files(ends, sorted(merged)) if merged and ends else set()
        left = sorted(tasks, key=lambda key: -dirty_share(states[key]))
        free = [key for key in left if key not in in_merges]
        large = {key for key in free if is_for_spark(self._spark, states[key])}
        sizes = [(tasks[key], read_bytes(states[key])) for key in free if key not in large]
        new = [
            *(_job(CLEAN, wanted) for wanted in in_jobs(sizes)),
            *(large_job(tasks[key]) for key in free if key in large),
            *(_job(CLEAN_NEXT, CleaningJob((tasks[key],))) for key in left if key in in_merges),
        ]
        if new:
            await self._metastore.jobs.enqueue_jobs(new[:room], by=lease.token)
            self._metrics.planned.inc(len(left))
        return min(len(new), room)

    def _allowed(
        self,
        tasks: Mapping[int, CleaningTask],
        states: Mapping[int, CleaningState],
        held: Mapping[int, int],
        now_ms: int,
    ) -> dict[int, CleaningTask]:
        """The tasks that no file of level 0 holds back; after RESERVED_MS also what is before the first such file."""
        allowed = {key: wanted for key, wanted in tasks.items() if key not in held}
        for key in allowed:
            self._held.pop(key, None)
        for key, first in held.items():
            self._held.setdefault(key, now_ms)
            is_late = now_ms - self._held[key] >= RESERVED_MS
            if is_late and first > states[key].cleaned_offset:
                allowed[key] = msgspec.structs.replace(tasks[key], end=first)
        return allowed

    async def _in_merges(self) -> set[uuid.UUID]:
        """The inputs of unfinished merges."""
        payloads = await self._metastore.compaction.unfinished_payloads(COMPACT.name, COMPACT_LARGE.name)
        return {file_id for payload in chain(*payloads) for file_id in decode_job(payload).file_ids}

    async def _hand_over(self, lease: Lease) -> None:
        """Move jobs that Spark did not finish to the workers: at once if Spark gets no jobs any more."""
        handed = await self._metastore.jobs.hand_over_jobs(
            CLEAN_LARGE.name,
            CLEAN.name,
            after_ms=self._spark.large_wait_ms if self._spark.large_bytes else 0,
            attempts=SPARK_ATTEMPTS,
            by=lease.token,
        )
        if handed:
            logger.warning("cleaning jobs moved from spark to the workers: jobs=%d", handed)
            self._metrics.handed_over.inc(handed)

    async def _without_damage(self, tasks: Mapping[int, CleaningTask], lease: Lease) -> dict[int, CleaningTask]:
        """Return the tasks that need not read a damaged extent; mark the other partitions.

        What is damaged was read within the last day; after that, a pass reads it again.
        """
        found = await self._metastore.compaction.damaged_parts([(key, wanted.end) for key, wanted in tasks.items()])
        damaged = {one.partition_key: one for one in reversed(found)}
        for key, one in damaged.items():
            why = f"an extent is damaged: file={one.file_id} offsets={one.base_offset}-{one.last_offset}: {one.why}"
            logger.error("partition cannot be cleaned: partition_key=%d error=%s", key, why)
            await self._metastore.cleaning.mark_uncleanable(lease.token, key, why)
        return {key: wanted for key, wanted in tasks.items() if key not in damaged}

    async def _merge_flushed(
        self, tasks: Mapping[int, CleaningTask], merged: set[uuid.UUID], lease: Lease
    ) -> dict[int, int]:
        """Let files of level 0 be merged first, and return the partitions that they hold back: the first offset in such
        a file.

        A rebuild of the index recognises a flushed batch by its copy in a merged file (rebuild_place.py); of one that
        was cleaned there may be nothing left to recognise.
        """
        if not tasks:
            return {}
        found = await self._metastore.cleaning.flushed_files([(key, wanted.end) for key, wanted in tasks.items()])
        files = sorted({file.file_id for file in found} - merged)
        merges = [
            CompactionJob(tuple(files[at : at + FILES_PER_MERGE]), 1) for at in range(0, len(files), FILES_PER_MERGE)
        ]
        if merges:
            new = [COMPACT.once(f"1:{merge.file_ids[0]}", encode(merge), priority=1) for merge in merges]
            await self._metastore.jobs.enqueue_jobs(new, by=lease.token)
            merged.update(files)
        firsts: dict[int, int] = {}
        for file in sorted(found, key=lambda file: -file.first_offset):
            firsts[file.partition_key] = file.first_offset
        return firsts

    def _show(self, rules: Mapping[int, CleaningRule], now_ms: int, states: Mapping[int, CleaningState]) -> None:
        known = [(rules[key], state) for key, state in states.items()]
        self._metrics.uncleanable.set(sum(state.uncleanable_ms is not None for _, state in known))
        self._metrics.delay_seconds.set(max((overdue_ms(rule, now_ms, s) for rule, s in known), default=0) / 1000)
        self._metrics.dirty_share.set(round(100 * max((dirty_share(state) for _, state in known), default=0)))


def compacted_partitions(image: MetadataImage) -> dict[int, CleaningRule]:
    """The rule of each partition of a compacted topic, by partition key. Copies that links keep are not cleaned before
    they are promoted: their sources clean, and a copy has what its source had when it was copied.
    """
    found: dict[int, CleaningRule] = {}
    for topic in image.topics_by_name.values():
        if image.link_of(topic.name):
            continue

        def value(name: str, topic_name: str = topic.name) -> str:
            decided = decided_topic_value(image, topic_name, name)
            assert decided is not None, f"a process's file could decide about {name}"
            return decided

        rule = cleaning_rule(value)
        if rule is not None:
            found.update((key, rule) for index in topic.indexes if (key := topic.key(index)) is not None)
    return found


def _job(kind: JobKind, wanted: CleaningJob) -> NewJob:
    return kind.once(str(wanted.tasks[0].partition_key), encode_cleaning(wanted))


def _chunks(by_key: Mapping[int, T], size: int) -> Iterator[dict[int, T]]:
    items = iter(by_key.items())
    while chunk := dict(islice(items, size)):
        yield chunk
