"""Decide which deletions of this process wait for a value: no file is asked, only the cluster's value counts.

Place: used by retention, janitor and sweeper before they delete.
Invariant: two workers with different files never delete by different rules. Until the cluster has a value of the
setting, what needs it deletes nothing (docs/decisions/0033-one-value-per-cluster.md).
"""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Gauge

from headrace.metastore.api.cluster import ClusterApi

logger = logging.getLogger(__name__)

FILE_DELETE_DELAY = "file.delete.delay.ms"


class Undecided:
    """Says what waits: a metric, and a log line when it begins and when it ends."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._waiting: dict[tuple[str, str], bool] = {}
        self._gauge = Gauge(
            "headrace_deletion_waits",
            "1 while this process deletes nothing of a kind because the cluster has no value of the setting yet",
            ["job", "setting"],
            registry=registry,
        )

    def show(self, job: str, setting: str, *, waits: bool) -> None:
        """Show whether this kind of job waits for the setting."""
        if waits and not self._waiting.get((job, setting)):
            logger.warning(
                "nothing is deleted until the cluster has a value: job=%s setting=%s; decide with"
                " `headrace configs set %s=... --brokers`",
                job,
                setting,
                setting,
            )
        elif not waits and self._waiting.get((job, setting)):
            logger.info("the cluster has a value, deletion goes on: job=%s setting=%s", job, setting)
        self._waiting[job, setting] = waits
        self._gauge.labels(job, setting).set(waits)

    async def has_delay(self, job: str, api: ClusterApi) -> bool:
        """Return whether the cluster has a value of file.delete.delay.ms; one query."""
        waits = FILE_DELETE_DELAY not in await api.cluster_configs()
        self.show(job, FILE_DELETE_DELAY, waits=waits)
        return not waits
