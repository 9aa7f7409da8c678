"""Every kind of background job, each declared once: its name in the queue, and who asks for it how often.

Place: the active controller asks for those that are PERIODIC (agent/cluster/controller/upkeep_steps.py), the loop over
tables for those PER_TABLE; other jobs and commands add those to be done ONCE. A worker has a handler for each kind that
it claims (compactor/worker.py, tables/upkeep/jobs.py).
Invariant: names are stored in the queue: never reuse one. Only holders that read segment files are read pins
(metastore/postgres/files/read_horizon.sql): a kind says so here, and a test holds both lists against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.metastore.api.jobs import JobSchedule, NewJob


@dataclass(frozen=True, slots=True)
class JobKind:
    """`every`: how long after the end of a run the next one starts, as the config that says so or in ms; None: it is
    done once.
    """

    name: str
    every: str | int | None = None
    priority: int = 0
    """Higher first."""
    reads_segments: bool = False
    """Whether its holder plans reads of segment files, which its lease keeps."""

    def once(
        self, key: str = "", payload: bytes = b"", *, priority: int = 0, delay_ms: int = 0, max_attempts: int = 10
    ) -> NewJob:
        """Return a job to be done once. `key` names it among the unfinished jobs of its kind."""
        return NewJob(self.name, key, payload, priority, delay_ms, max_attempts)

    def schedule(self, config_ms: Callable[[str], int]) -> JobSchedule:
        """Return when the one job of the cluster is due; `config_ms` reads a config."""
        return JobSchedule(self.name, self.every_ms(config_ms), priority=self.priority)

    def next_of(self, key: str, config_ms: Callable[[str], int]) -> NewJob:
        """Return the next job of what `key` names, due after the interval; it changes nothing while one is there."""
        return self.once(key, priority=self.priority, delay_ms=self.every_ms(config_ms))

    def every_ms(self, config_ms: Callable[[str], int]) -> int:
        """Return the interval; `config_ms` reads a config."""
        assert self.every is not None, self.name
        return config_ms(self.every) if isinstance(self.every, str) else self.every

    def at(self, place: str) -> JobKind:
        """Return the kind of one place: a catalog and its namespace. Only workers that have it open claim those."""
        return replace(self, name=f"{self.name} {place}")


RETENTION = JobKind("retention", "log.retention.check.interval.ms", priority=10)
"""Above compaction: it frees space and costs little."""
PLAN_COMPACTION = JobKind("plan", "compaction.interval.ms")
PLAN_CLEANING = JobKind("plan-cleaning", "log.cleaner.backoff.ms")
CLEAN_UP_SEGMENTS = JobKind("clean-up-segments", "segments.cleanup.interval.ms")
DELETE_DEAD_FILES = JobKind("delete", 60_000, priority=5)
"""Its interval is also how soon a restore of the metastore is noticed (compactor/permit.py)."""
SWEEP_ORPHANS_MS = 3_600_000
SWEEP_ORPHANS = JobKind("sweep", SWEEP_ORPHANS_MS)
RECORD_OUTCOMES = JobKind("record-outcomes", 10_000)
ARCHIVE_AUDIT_MS = 20_000
ARCHIVE_AUDIT = JobKind("archive-audit", ARCHIVE_AUDIT_MS)
"""Queues ARCHIVE_AUDIT_ROWS, and looks after the objects."""
PLAN_LINKS = JobKind("plan-links", 2_000, priority=5)
"""Queues LINK_TOPICS and LINK_COPY, for each link."""
PERIODIC = (
    RETENTION, PLAN_COMPACTION, PLAN_CLEANING, CLEAN_UP_SEGMENTS,
    DELETE_DEAD_FILES, SWEEP_ORPHANS, RECORD_OUTCOMES, ARCHIVE_AUDIT, PLAN_LINKS,
)  # fmt: skip
"""One job of each in the cluster, without a key."""

TABLE_UPKEEP = JobKind("table-upkeep", "tables.upkeep.interval.ms")
TABLE_ORPHANS = JobKind("table-orphans", 86_400_000)
"""Looks for files of a table that no commit has; each look reads every manifest."""
PER_TABLE = (TABLE_UPKEEP, TABLE_ORPHANS)
"""One job of each for every table of a place (`at`): only the loop over its tables knows which there are."""

ARCHIVE_AUDIT_ROWS = JobKind("archive-audit-rows")
COMPACT = JobKind("compact", reads_segments=True)
COMPACT_LARGE = JobKind("compact-large", reads_segments=True)
"""A merge for Spark, as CLEAN_LARGE is a pass for it."""
CLEAN = JobKind("clean", reads_segments=True)
CLEAN_LARGE = JobKind("clean-large", reads_segments=True)
CLEAN_NEXT = JobKind("clean-next", reads_segments=True)
"""Passes that wait for merges: no worker claims them, the planner makes them CLEAN."""
MEND_DAMAGE = JobKind("mend-damage", reads_segments=True)
"""Claimed by the command that queued it (`headrace damage`)."""

LINK_TOPICS = JobKind("link-topics")
LINK_COPY = JobKind("link-copy")
"""Both end after minutes, and are asked for again while there is the link."""

ONCE = (
    ARCHIVE_AUDIT_ROWS, COMPACT, COMPACT_LARGE, CLEAN, CLEAN_LARGE, CLEAN_NEXT, MEND_DAMAGE, LINK_TOPICS, LINK_COPY,
)  # fmt: skip
KINDS = {kind.name: kind for kind in (*PERIODIC, *PER_TABLE, *ONCE)}
