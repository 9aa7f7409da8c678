"""The periodic jobs that the active controller keeps in the queue for the compactors, and how its jobs fare.

Place: a row of controller.py's table; processes with the role compactor claim the jobs (compactor/worker.py).
Invariant: every kind here has a handler there (tests/compactor/test_schedules.py compares).
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Gauge

from headrace.metastore.api.audit_archive import ARCHIVE_AUDIT
from headrace.metastore.api.cleaning import PLAN_CLEANING_JOB
from headrace.metastore.api.controller import ControllerMetastore
from headrace.metastore.api.files import DELETE_DEAD_FILES, SWEEP_ORPHANS
from headrace.metastore.api.jobs import JobSchedule
from headrace.metastore.api.outcomes import RECORD_OUTCOMES
from headrace.metastore.api.reports import JobCount
from headrace.metastore.api.retention import RETENTION_JOB
from headrace.metastore.api.segments import CLEAN_UP_SEGMENTS_JOB
from headrace.metastore.log.effective_configs import EffectiveConfigs, set_for_all_brokers
from headrace.metastore.log.image import MetadataImage

PLAN_COMPACTION_JOB = "plan"
RETENTION_PRIORITY = 10
"""Priority of retention, above compaction: it frees space and costs little."""


class JobSchedules:
    """Checks that the periodic jobs exist and that workers take jobs. One per candidate."""

    def __init__(self, api: ControllerMetastore, registry: CollectorRegistry) -> None:
        self._api = api
        self._jobs = Gauge(
            "headrace_jobs",
            "Background jobs of the cluster, on the active controller; finished ones count for a day",
            ["kind", "state"],
            registry=registry,
        )
        self._overdue = Gauge(
            "headrace_jobs_overdue_seconds",
            "Age of the oldest due job without a worker, on the active controller",
            ["kind"],
            registry=registry,
        )

    async def keep(self, epoch: int, _: MetadataImage, wanted: Sequence[JobSchedule]) -> None:
        """Make sure that the jobs are there, and show all jobs."""
        await self._api.schedule_jobs(epoch, wanted)
        self._show(await self._api.count_jobs())

    def stand_by(self) -> None:
        """Show none."""
        self._show([])

    def _show(self, counts: Sequence[JobCount]) -> None:
        """Replace the previous counts."""
        self._jobs.clear()
        self._overdue.clear()
        overdue_ms: dict[str, int] = {}
        for count in counts:
            self._jobs.labels(count.kind, count.state.name.lower()).set(count.jobs)
            overdue_ms[count.kind] = max(overdue_ms.get(count.kind, 0), count.overdue_ms)
        for kind, longest_ms in overdue_ms.items():
            self._overdue.labels(kind).set(longest_ms / 1000)


def schedules(configs: EffectiveConfigs, image: MetadataImage) -> list[JobSchedule]:
    """Return the periodic jobs with their intervals, from the cluster's current configs."""
    cluster = set_for_all_brokers(image)
    retention_ms = int(configs.cluster_value(cluster, "log.retention.check.interval.ms"))
    plan_ms = int(configs.cluster_value(cluster, "compaction.interval.ms"))
    cleaning_ms = int(configs.cluster_value(cluster, "log.cleaner.backoff.ms"))
    segments_ms = int(configs.cluster_value(cluster, "segments.cleanup.interval.ms"))
    return [
        JobSchedule(RETENTION_JOB, retention_ms, priority=RETENTION_PRIORITY),
        JobSchedule(PLAN_COMPACTION_JOB, plan_ms),
        JobSchedule(PLAN_CLEANING_JOB, cleaning_ms),
        JobSchedule(CLEAN_UP_SEGMENTS_JOB, segments_ms),
        DELETE_DEAD_FILES,
        SWEEP_ORPHANS,
        RECORD_OUTCOMES,
        ARCHIVE_AUDIT,
    ]
