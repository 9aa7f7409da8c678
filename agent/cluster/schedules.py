"""The periodic jobs that the active controller keeps in the queue for the compactors.

Place: passed to the controller; processes with the role compactor claim the jobs (compactor/worker.py).
Invariant: every kind here has a handler there (tests/compactor/test_schedules.py compares).
"""

from __future__ import annotations

from headrace.metastore.api.audit_archive import ARCHIVE_AUDIT
from headrace.metastore.api.cleaning import PLAN_CLEANING_JOB
from headrace.metastore.api.files import DELETE_DEAD_FILES, SWEEP_ORPHANS
from headrace.metastore.api.jobs import JobSchedule
from headrace.metastore.api.outcomes import RECORD_OUTCOMES
from headrace.metastore.api.retention import RETENTION_JOB
from headrace.metastore.api.segments import CLEAN_UP_SEGMENTS_JOB
from headrace.metastore.log.effective_configs import EffectiveConfigs, set_for_all_brokers
from headrace.metastore.log.image import MetadataImage

PLAN_COMPACTION_JOB = "plan"
RETENTION_PRIORITY = 10
"""Priority of retention, above compaction: it frees space and costs little."""


def schedules(configs: EffectiveConfigs, image: MetadataImage) -> list[JobSchedule]:
    """The periodic jobs with their intervals, from the cluster's current configs."""
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
