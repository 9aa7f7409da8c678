"""Looks once a minute at what needs an operator and shows in no other metric: the age of Postgres' backup, jobs that no
worker takes, and damage in the bucket.

Place: one per process with a metadata log, started by cli/process/shell.py; it works while the process is the active
controller, so one process of a cluster asks.
Invariant: a process that is not the active controller shows nothing and warns of nothing. A look that fails keeps what
the last one found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Gauge

from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.reports import JobCount
from headrace.metastore.backups import backup_age_s, backup_problem, read_backup
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
OVERDUE_SECONDS = 900.0
"""As the alert HeadraceCompactionBehind."""
WAITS_FOR_SPARK = frozenset({"compact-large", "clean-large"})
"""Kinds that may wait for the next run of Spark."""
DAMAGE_MAX = 10_000
"""Damaged extents that are counted by partition."""
NO_AGE = -1.0
"""The age of a backup that is not recorded."""


class UpkeepWatch:
    """`run` until cancelled. `warnings` may be read by any thread."""

    def __init__(
        self,
        api: Metastore,
        store: ObjectStore,
        delay_ms: int,
        is_active: Callable[[], bool],
        clock: Clock,
        registry: CollectorRegistry,
    ) -> None:
        """`delay_ms`: file.delete.delay.ms of this process's file, if the cluster has no value."""
        self._api, self._store, self._delay_ms = api, store, delay_ms
        self._is_active, self._clock = is_active, clock
        self.warnings: tuple[str, ...] = ()
        self._age = Gauge(
            "headrace_backup_age_seconds",
            "How far a restore of Postgres would go back, on the active controller; -1: no backup is recorded",
            ["kind"],
            registry=registry,
        )
        self._overdue = Gauge(
            "headrace_backup_overdue",
            "1 on the active controller if no backup of Postgres is recorded, or if the newest one is older than"
            " file.delete.delay.ms",
            registry=registry,
        )

        self._damaged = Gauge(
            "headrace_damaged_partitions",
            "Partitions with offsets that cannot be read because the bucket is damaged, on the active controller",
            registry=registry,
        )

    async def run(self) -> None:
        """Look every LOOK_SECONDS, first after a pause: a process that starts has other things to do."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            if self._is_active():
                try:
                    await self._look()
                except HeadraceError as error:
                    logger.warning("cannot look at backups and jobs: error=%s", error)
            else:
                self._stand_by()

    async def _look(self) -> None:
        record, archive = await read_backup(self._store), await self._api.wal_archive()
        delay_ms = int((await self._api.cluster.cluster_configs()).get("file.delete.delay.ms", self._delay_ms))
        late = overdue_jobs(await self._api.reports.count_jobs())
        now_ms = self._clock.wall_ms()
        problem = backup_problem(record, archive, now_ms, delay_ms)
        self._age.clear()
        age_s = NO_AGE if record is None else backup_age_s(record, archive, now_ms)
        self._age.labels("none" if record is None else str(record.kind)).set(age_s)
        self._overdue.set(problem is not None)
        damaged = {one.extent.partition_key for one in (await self._api.compaction.list_damage(DAMAGE_MAX))[0]}
        self._damaged.set(len(damaged))
        warnings = [*([] if problem is None else [problem]), *late]
        if damaged:
            warnings.append(f"damage in the bucket: partitions={len(damaged)}; headrace damage list names them")
        for warning in warnings:
            if not self._is_known(warning):
                logger.info("%s", warning)  # metrics, alerts and /readyz have it for as long as it lasts
        self.warnings = tuple(warnings)

    def _is_known(self, warning: str) -> bool:
        """Numbers change with each look."""
        return any(warning.split(":")[0] == known.split(":")[0] for known in self.warnings)

    def _stand_by(self) -> None:
        self.warnings = ()
        self._age.clear()
        self._overdue.set(0)
        self._damaged.set(0)


def overdue_jobs(counts: Sequence[JobCount]) -> list[str]:
    """Return one line for each kind of job that waits for too long."""
    late = {
        each.kind: each.overdue_ms / 1000
        for each in counts
        if each.overdue_ms / 1000 > OVERDUE_SECONDS and each.kind not in WAITS_FOR_SPARK
    }
    return [f"background work is overdue, kind {kind}: {seconds:.0f} s" for kind, seconds in sorted(late.items())]
