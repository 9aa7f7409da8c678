"""The compactor as the only role of a process: background work, no Kafka listener, no clients.

Place: run by shell.py; the worker is the compactor's. Next to other roles, worker_thread.py takes its place.
Invariant: it registers nothing in the cluster, and no other process waits for it. If it crashes, its leases expire
and other workers continue.
"""

from __future__ import annotations

from typing import Any

from headrace.compactor.worker import Worker
from headrace.config.listeners import COMPACTOR

SHOWN_JOBS = 100


class CompactorRole:
    """Implements MainRole. The worker uses the shell's connections."""

    title = COMPACTOR
    needs_bucket = False

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def start(self) -> None:
        """Start to look for jobs."""
        self._worker.start()

    async def drain(self, grace_seconds: float) -> None:
        """Finish jobs within the grace period, then return the rest to the queue."""
        await self._worker.stop()

    async def close(self, grace_seconds: float) -> None:
        """It holds nothing else."""

    def ready_fields(self) -> str:
        return f"compactor={self._worker.name}"

    def not_ready(self) -> None:
        return None

    async def status(self) -> dict[str, Any]:
        """Worker name and pending work, for people."""
        jobs = await self._worker.metastore.reports.list_jobs(SHOWN_JOBS)
        return {
            "roles": [COMPACTOR],
            "cluster_id": self._worker.metastore.cluster_id,
            "worker": self._worker.name,
            "jobs": [
                {
                    "job_id": job.job_id,
                    "kind": job.kind,
                    "key": job.key,
                    "state": job.state.name.lower(),
                    "worker": job.worker,
                    "attempts": job.attempts,
                    "progress": job.progress,
                    "last_error": job.last_error,
                }
                for job in jobs
            ],
        }
