"""The periodic jobs (jobs/kinds.py) that the active controller keeps in the queue, and how the jobs of it fare.

Place: a row of controller.py's table; processes with the role compactor claim the jobs (compactor/worker.py).
Invariant: every kind has a handler there (tests/compactor/test_schedules.py compares).
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Gauge

from headrace.jobs.kinds import PERIODIC
from headrace.metastore.api.jobs import JobSchedule
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.reports import JobCount
from headrace.metastore.log.effective_configs import EffectiveConfigs, set_for_all_brokers
from headrace.metastore.log.image import MetadataImage


class JobSchedules:
    """Checks that the periodic jobs exist and that workers take jobs. One per candidate."""

    def __init__(self, api: Metastore, registry: CollectorRegistry) -> None:
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
        await self._api.jobs.schedule_jobs(epoch, wanted)
        self._show(await self._api.reports.count_jobs())

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
    return [kind.schedule(lambda name: int(configs.cluster_value(cluster, name))) for kind in PERIODIC]
