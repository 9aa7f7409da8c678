"""The periodic jobs of a cluster: what the active controller keeps in the queue for the compactors.

Place: given to the controller; the processes with the role compactor claim them (compactor/worker.py).
Invariant: every kind here has a handler there (tests/compactor/test_schedules.py compares). If the process dies
here nothing is lost: jobs are rows.
"""

from __future__ import annotations

from config.settings import Settings
from metastore.files import DELETE_DEAD_FILES, SWEEP_ORPHANS
from metastore.jobs import JobSchedule
from metastore.retention import RETENTION_JOB

PLAN_COMPACTION_JOB = "plan"
RETENTION_PRIORITY = 10
"""Above compaction: it frees space and costs little."""


def schedules(settings: Settings) -> list[JobSchedule]:
    """What comes again and again, and how often."""
    return [
        JobSchedule(RETENTION_JOB, settings.log_retention_check_interval_ms, priority=RETENTION_PRIORITY),
        JobSchedule(PLAN_COMPACTION_JOB, settings.log_cleaner_backoff_ms),
        DELETE_DEAD_FILES,
        SWEEP_ORPHANS,
    ]
