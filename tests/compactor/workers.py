"""A worker on a real metastore and a bucket in memory."""

from __future__ import annotations

from headrace.compactor.worker import Worker
from headrace.config.settings import Settings
from headrace.jobs.runner import JobMetrics
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import Clock
from headrace.storage.objects.memory import MemoryStore
from load.contexts import a_context


def a_worker(metastore: PostgresMetastore, clock: Clock, settings: Settings | None = None) -> Worker:
    """Return one that was not started."""
    context = a_context(metastore, clock, store=MemoryStore(), settings=settings)
    return Worker(context, JobMetrics(clock, context.registry))
