"""What of a partition is behind: its groups, an open transaction, cleaning by key, and the jobs that would move it.

Place: under command.py. It asks the metastore only, so it says the same while no agent runs.
Invariant: reads only. A group is behind if it has a lag; who is behind is not judged, only how far and since when.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.compactor.cleaning.planner import compacted_partitions
from headrace.compactor.mending.partition_check import PartitionCheck
from headrace.metastore.api.cleaning import CleaningQuery, CleaningState
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.reports import ConsumerLag, JobCount, ProducerStatus
from headrace.metastore.log.image import MetadataImage

LAGS_MAX = 100_000
"""Pairs of group and partition that are asked for: the largest ones of the cluster."""
GROUPS_SHOWN = 10
OVERDUE_MS = 60_000
JOBS = {
    "plan": "merging of files", "compact": "merging of files", "plan-cleaning": "cleaning by key",
    "clean": "cleaning by key", "retention": "retention", "delete": "deletion of files",
    "table-upkeep": "upkeep of tables",
}  # fmt: skip
"""Kinds of jobs that partitions wait for, and what they do."""


class Behind(NamedTuple):
    """One thing that is behind. `since_ms` on the database's clock; None: not known."""

    what: str
    found: str
    since_ms: int | None
    to_do: str


class JobLook(NamedTuple):
    """What is asked once for all partitions of a command."""

    jobs: list[JobCount]
    lags: list[ConsumerLag]
    compacted: dict[int, int]
    """min.compaction.lag.ms of the partitions of compacted topics, by partition key."""


async def look_once(api: Metastore, image: MetadataImage) -> JobLook:
    """Ask what is the same for all partitions."""
    compacted = {key: rule.min_lag_ms for key, rule in compacted_partitions(image).items()}
    return JobLook(await api.reports.count_jobs(), await api.reports.consumer_lags(LAGS_MAX), compacted)


async def behind(api: Metastore, look: JobLook, key: int, found: PartitionCheck) -> list[Behind]:
    """Return what is behind in one partition, groups first."""
    (producers,) = await api.reports.describe_producers([key])
    now_ms = 0
    states: list[CleaningState] = []
    if key in look.compacted:
        now_ms, states = await api.cleaning.describe_cleaning([CleaningQuery(key, look.compacted[key])])
    return [
        *_groups([lag for lag in look.lags if lag.partition_key == key and lag.records > 0], found),
        *_transactions(producers, found),
        *(each for state in states for each in _cleaning(state, now_ms)),
    ]


def late_jobs(jobs: Sequence[JobCount]) -> Iterator[Behind]:
    """Yield the background work that is late in the whole cluster."""
    for job in jobs:
        if job.kind not in JOBS:
            continue
        if job.overdue_ms > OVERDUE_MS:
            yield Behind(
                f"{JOBS[job.kind]} (job {job.kind})",
                f"due for {job.overdue_ms / 1000:.0f} s and not taken",
                None,
                "start headrace compactor, or add the role compactor to process.roles; more of them if they are busy",
            )
        if job.state is JobState.GIVEN_UP and job.jobs:
            found = f"{job.jobs} were given up after their last attempt"
            yield Behind(f"{JOBS[job.kind]} (job {job.kind})", found, None, "look into the compactors' logs")


def _groups(lags: list[ConsumerLag], found: PartitionCheck) -> Iterator[Behind]:
    for lag in sorted(lags, key=lambda each: -each.records)[:GROUPS_SHOWN]:
        name, committed = shlex.quote(lag.group_id), found.high_watermark - lag.records
        if committed < found.log_start_offset:
            gone = f"its next offset {committed} is below the log start {found.log_start_offset}: it was deleted unread"
            reset = f"headrace groups reset-offsets {name} shows where it may go on; raise retention.ms"
            yield Behind(f"group {lag.group_id}", gone, None, reset)
            continue
        late = (
            f"{lag.records:,} records behind, at offset {committed}; that one is {lag.age_ms / 1000:.0f} s old at least"
        )
        to_do = f"headrace groups describe {name} --members: are they there, and does one fail at this offset?"
        yield Behind(f"group {lag.group_id}", late, None, to_do)
    if len(lags) > GROUPS_SHOWN:
        yield Behind("groups", f"{len(lags) - GROUPS_SHOWN} more are behind", None, "headrace groups list")


def _transactions(producers: list[ProducerStatus], found: PartitionCheck) -> Iterator[Behind]:
    stable = found.last_stable_offset
    if stable >= found.high_watermark:
        return
    for producer in producers:
        if producer.transaction_start == stable:
            waits = f"read_committed readers wait at offset {stable} for producer id {producer.producer_id}"
            to_do = "headrace transactions find-hanging shows whether it will end; headrace transactions abort ends it"
            yield Behind("open transaction", waits, producer.last_timestamp, to_do)


def _cleaning(state: CleaningState, now_ms: int) -> Iterator[Behind]:
    if state.uncleanable_ms is not None:
        found = f"a pass could not clean it: it stays at offset {state.cleaned_offset}"
        yield Behind("cleaning by key", found, state.uncleanable_ms, "headrace doctor says why; damage is above")
    elif state.dirty_bytes and state.dirty_since_ms is not None:
        waits = (now_ms - state.dirty_since_ms) / 1000
        found = f"{state.dirty_bytes:,} dirty bytes from offset {state.cleaned_offset} on, the first for {waits:,.0f} s"
        to_do = "usual until min.cleanable.dirty.ratio or max.compaction.lag.ms is reached (docs/operate/CLEANING.md)"
        yield Behind("cleaning by key", found, state.dirty_since_ms, to_do)
