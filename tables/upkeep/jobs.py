"""Upkeep as jobs of the metastore: each table's is leased to one worker at a time.

Place: TableFollower asks for jobs; the job loop of the process (jobs/runner.py, started by
cli/process/tables_role.py or spark/tables/application.py) runs them, with the metrics here.

    the loop over tables -> a job for each that has none, due after the interval -> a worker's lease -> steps.py

Invariant: a table has at most one unfinished job of each kind, and the lease of that has one holder. A job that
another worker took is cancelled: what its thread still does is bound to a snapshot (steps.py), so losing the lease
in the middle loses and doubles no row. The kind names catalog and namespace: only workers that have these open take
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.config.settings import Settings
from headrace.jobs.kinds import PER_TABLE, TABLE_ORPHANS, TABLE_UPKEEP, JobKind
from headrace.jobs.lease import Lease
from headrace.jobs.runner import JobHandler
from headrace.metastore.api.jobs import Job, JobApi
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.scan.cluster import ScannedCluster
from headrace.storage.clock import Clock
from headrace.storage.errors import NotFoundError
from headrace.tables.catalog import CatalogAddress
from headrace.tables.errors import ForeignTableError
from headrace.tables.looking import Condition, TableReader
from headrace.tables.state import WITH_UPKEEP
from headrace.tables.upkeep.steps import TableUpkeep, UpkeepReport


class UpkeepMetrics:
    """One set per process with the role tables."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.orphans = Counter(
            "headrace_table_orphans_removed_total",
            "Data files that no commit of the table has, and that were removed",
            ["table"],
            registry=registry,
        )
        self._deleted = Counter(
            "headrace_table_retention_deleted_rows_total",
            "Rows that were older than the table's retention, and were deleted",
            ["table"],
            registry=registry,
        )
        self._replaced = Counter(
            "headrace_table_replaced_files_total",
            "Small data files that upkeep replaced by larger ones",
            ["table"],
            registry=registry,
        )
        self._expired = Counter(
            "headrace_table_expired_snapshots_total", "Snapshots that upkeep removed", ["table"], registry=registry
        )
        self._files = Gauge(
            "headrace_table_files",
            "Data files of the table and its dead letters, as of the newest upkeep by this process",
            ["table"],
            registry=registry,
        )
        self._manifests = Gauge(
            "headrace_table_manifests",
            "Manifests of the table and its dead letters, as of the newest upkeep by this process",
            ["table"],
            registry=registry,
        )

    def done(self, table: str, report: UpkeepReport) -> None:
        """Show one run."""
        self._deleted.labels(table).inc(report.deleted.rows)
        self._replaced.labels(table).inc(report.rewritten.replaced)
        self._expired.labels(table).inc(report.expired)
        self._files.labels(table).set(report.files)
        self._manifests.labels(table).set(report.manifests)

    def forget(self, table: str) -> None:
        """The table was dropped."""
        for gauge in (self._files, self._manifests):
            with contextlib.suppress(KeyError):
                gauge.remove(table)


logger = logging.getLogger(__name__)

ASK_SECONDS = 60.0
"""The longest time between two looks for tables without a job; a shorter interval of upkeep counts."""


@dataclass(slots=True)
class UpkeepSchedule:
    """Asks for the jobs of one catalog's tables, as jobs/kinds.py declares them. `place`: catalog and namespace."""

    jobs: JobApi
    place: str
    config_ms: Callable[[str], int]
    """Reads a setting."""
    clock: Clock
    _asked: dict[str, float] = field(default_factory=dict)
    """The time of the last question for each table, in monotonic seconds."""

    @classmethod
    def of(cls, settings: Settings, address: CatalogAddress, cluster: ScannedCluster) -> UpkeepSchedule:
        """Return what asks for the jobs of this catalog's tables, by the process's own settings."""
        place, configs = f"{address.name}.{address.namespace}", EffectiveConfigs(settings)
        return cls(cluster.metastore.jobs, place, lambda name: int(configs.cluster_value({}, name)), cluster.clock)

    @property
    def kinds(self) -> list[JobKind]:
        """The kinds of its jobs."""
        return [kind.at(self.place) for kind in PER_TABLE]

    async def ask(self, names: Iterable[str]) -> None:
        """Make sure that these tables have a job of each kind. Errors of the metastore."""
        now, kinds = self.clock.monotonic(), self.kinds
        every = min(ASK_SECONDS, *(kind.every_ms(self.config_ms) / 1000 for kind in kinds))
        due = [name for name in names if name not in self._asked or now - self._asked[name] >= every]
        if due:
            await self.jobs.enqueue_jobs([kind.next_of(name, self.config_ms) for kind in kinds for name in due])
            self._asked |= dict.fromkeys(due, now)

    def forget(self, name: str) -> None:
        """The table was dropped."""
        self._asked.pop(name, None)


@dataclass(slots=True)
class UpkeepJobs:
    """Does the jobs. The job loop keeps the lease, and cancels a job if its lease is lost."""

    tables: TableReader
    upkeep: TableUpkeep
    metrics: UpkeepMetrics
    clock: Clock

    def handlers(self, schedule: UpkeepSchedule) -> dict[str, JobHandler]:
        """Return what does the jobs of each kind."""
        handlers = {TABLE_UPKEEP: self.keep, TABLE_ORPHANS: self.remove_orphans}
        return {kind.at(schedule.place).name: handler for kind, handler in handlers.items()}

    async def keep(self, job: Job, lease: Lease) -> None:
        """Do the upkeep of the table that the job names. Errors as TableUpkeep.keep and TableReader.look."""
        name, stop = job.key, threading.Event()
        if not await self._is_kept(name):
            return
        keeping = asyncio.to_thread(self.upkeep.keep, name, self.clock.wall_ms(), stop.is_set)
        work = asyncio.ensure_future(keeping)
        try:
            report = await asyncio.shield(work)
        except asyncio.CancelledError:  # the lease is lost, or the process ends
            stop.set()
            await asyncio.wait({work})
            raise
        except (NotFoundError, ForeignTableError):
            return  # dropped meanwhile
        logger.info("upkeep: table=%s %s", name, report)
        self.metrics.done(name, report)

    async def remove_orphans(self, job: Job, lease: Lease) -> None:
        """Remove what killed workers left of the table that the job names. Errors as `keep`."""
        if not await self._is_kept(job.key):
            return
        try:
            count = await asyncio.to_thread(self.upkeep.remove_orphans, job.key)
        except (NotFoundError, ForeignTableError):
            return
        if count:
            logger.info("orphan files removed: table=%s files=%d", job.key, count)
        self.metrics.orphans.labels(job.key).inc(count)

    async def _is_kept(self, name: str) -> bool:
        """Return whether there is such a table, and it is not stopped, or detached without its upkeep."""
        try:
            look = await self.tables.look(name)
        except (NotFoundError, ForeignTableError):
            self.metrics.forget(name)
            return False
        if look.condition is Condition.DETACHED:
            return look.definition.detached == WITH_UPKEEP
        return look.condition is not Condition.STOPPED
