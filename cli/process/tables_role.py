"""The role tables: keeps the Iceberg tables of topics, next to the compactor or alone in a process.

Place: run by shell.py; the loop is tables/follower.py, and upkeep is jobs in the metastore's queue (upkeep/).
Invariant: it registers nothing in the cluster, and no other process waits for it. If it crashes, another process
continues where each table ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

from headrace.config.listeners import TABLES
from headrace.metastore.process_context import ProcessContext
from headrace.tables.extra import require_tables

if TYPE_CHECKING:
    from headrace.jobs.runner import JobMetrics, JobRunner
    from headrace.tables.follower import TableFollower
    from headrace.tables.looking import TableReader
    from headrace.tables.metrics import TableMetrics
    from headrace.tables.upkeep.jobs import UpkeepMetrics, UpkeepSchedule


class TablesRole:
    """Implements MainRole. It uses the shell's connections to the metastore, and separate ones to bucket and catalog.

    InvalidError if the extra `tables` is not installed, OptionError if the settings name no catalog.
    """

    title = TABLES
    needs_bucket = False

    def __init__(self, context: ProcessContext, job_metrics: JobMetrics) -> None:
        """`job_metrics`: the process's."""
        require_tables()
        from headrace.tables.catalog import CatalogAddress

        self._process, self._settings, self._job_metrics = context, context.settings, job_metrics
        self._address = CatalogAddress.of(context.settings)
        self._follower: TableFollower | None = None
        self._metrics: TableMetrics | None = None
        self._upkeep_metrics: UpkeepMetrics | None = None
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to follow; a catalog that does not answer is asked again."""
        self._loop = self._process.supervisor.keep("tables", self._follow)

    async def drain(self, grace_seconds: float) -> None:
        """Stop. A commit under way happens or not: the next process reads it from the table."""
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop

    async def close(self, grace_seconds: float) -> None:
        """It holds nothing else."""

    def not_ready(self) -> None:
        return None

    def ready_fields(self) -> str:
        return f"tables={self._address.name}.{self._address.namespace}"

    async def status(self) -> dict[str, Any]:
        """The newest round of each table, for people, and the rounds that take long."""
        rounds = {} if self._follower is None else self._follower.last
        long = {} if self._follower is None else self._follower.turns.long()
        return {
            "roles": [TABLES],
            "cluster_id": self._process.metastore.cluster_id,
            "tables": {
                name: {"condition": each.condition.value, "reason": each.reason, "lag": sum(each.lag.values())}
                for name, each in sorted(rounds.items())
            },
            "long_rounds": {name: round(seconds) for name, seconds in sorted(long.items())},
        }

    async def _follow(self) -> None:
        from headrace.scan.cluster import BucketAddress, ScannedCluster
        from headrace.scan.partitions import TopicCatalog
        from headrace.scan.read import SplitReader
        from headrace.tables.follower import TableFollower
        from headrace.tables.log.chunks import PIN_HINT
        from headrace.tables.looking import TableReader
        from headrace.tables.metrics import TableMetrics
        from headrace.tables.upkeep.jobs import UpkeepSchedule
        from headrace.tables.values.apart.process import OpeningPool
        from headrace.tables.values.formats import ValueFormats
        from headrace.tables.worker import TableWorker

        shared, settings = self._process, self._settings
        catalog = await asyncio.to_thread(self._address.open)
        reader = SplitReader.open(BucketAddress.of(settings), shared.clock, shared.rng, pin_hint=PIN_HINT)
        formats = ValueFormats(settings.tables_schema_registry_url, OpeningPool())
        try:
            cluster = ScannedCluster(shared.metastore, shared.store, shared.clock, shared.rng)
            tables = TableReader(cluster, TopicCatalog(shared.metastore.cluster), catalog)
            self._metrics = self._metrics or TableMetrics(shared.registry, shared.clock.monotonic)
            worker = TableWorker(tables, reader, formats=formats, looked=self._metrics.looked)
            schedule = UpkeepSchedule.of(settings, self._address, cluster)
            self._follower = TableFollower.of(settings, worker, self._metrics, self._process.supervisor, schedule)
            jobs = self._jobs(tables, schedule)
            jobs.start()
            try:
                await self._follower.run()
            finally:
                await jobs.stop(0)
        finally:
            await asyncio.to_thread(formats.close)
            await asyncio.to_thread(reader.close)
            await asyncio.to_thread(catalog.close)

    def _jobs(self, tables: TableReader, schedule: UpkeepSchedule) -> JobRunner:
        """Return the runner that does the jobs of upkeep, one at a time."""
        from headrace.jobs.runner import JobRunner, RunnerTerms
        from headrace.tables.upkeep.jobs import UpkeepJobs, UpkeepMetrics
        from headrace.tables.upkeep.steps import TableUpkeep, UpkeepTerms

        shared = self._process
        self._upkeep_metrics = self._upkeep_metrics or UpkeepMetrics(shared.registry)
        upkeep = TableUpkeep(tables.catalog, UpkeepTerms.of(self._settings))
        work = UpkeepJobs(tables, upkeep, self._upkeep_metrics, shared.clock)
        return JobRunner(
            shared.metastore.jobs,
            work.handlers(schedule),
            RunnerTerms(f"{socket.gethostname()}-{os.getpid()}"),
            shared.clock,
            shared.rng,
            self._job_metrics,
            shared.supervisor,
        )
