"""A process that does only background work (process.roles=compactor): no Kafka listener, no clients.

Place: under serving.py, instead of an agent; it composes the compactor's worker with the agent's HTTP server.
Invariant: it registers nothing in the cluster, and no other process waits for it. If it crashes, its leases expire
and other workers continue.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

from prometheus_client import REGISTRY, CollectorRegistry

from headrace.agent.http.app import make_app
from headrace.agent.http.server import HttpServer, ask
from headrace.compactor.worker import Worker
from headrace.config.settings import Settings
from headrace.storage.errors import HeadraceError

SHOWN_JOBS = 100


class CompactorProcess:
    """Create it with `open`, then `start` and finally `stop`; the same steps as an Agent's."""

    def __init__(self, settings: Settings, worker: Worker, registry: CollectorRegistry) -> None:
        self._settings, self._worker = settings, worker
        self._loop = asyncio.get_running_loop()
        self._http = HttpServer(make_app(self, registry), settings.http_host, settings.http_port)

    @classmethod
    async def open(cls, settings: Settings, registry: CollectorRegistry = REGISTRY) -> Self:
        """Connect to metastore and bucket; errors as PostgresMetastore.open and open_store."""
        return cls(settings, await Worker.open(settings, registry), registry)

    async def require_formatted_storage(self) -> None:
        """InvalidError, with instructions, unless bucket and metastore were formatted as the same cluster."""
        await self._worker.require_formatted_storage()

    async def start(self) -> None:
        """Start to look for jobs."""
        self._http.start()
        self._worker.start()

    async def stop(self) -> None:
        """Finish jobs within shutdown.grace.ms, then return the rest to the queue. Safe in any state."""
        await self._worker.stop()
        await asyncio.to_thread(self._http.stop)

    def ready_line(self) -> str:
        """The line that the command prints when it is ready."""
        return f"ready compactor={self._worker.name} http={self._settings.http_host}:{self._http.port}"

    # -- agent.http.app.Probe, called on the HTTP loop

    async def not_ready_reason(self) -> str | None:
        """None while it can run jobs."""
        return await ask(self._loop, self._not_ready_reason())

    async def status(self) -> dict[str, Any]:
        """Worker name and pending work, for people."""
        return await ask(self._loop, self._status())

    async def _not_ready_reason(self) -> str | None:
        try:
            await self._worker.metastore.metadata_head()
        except HeadraceError as error:
            return f"metastore: {error}"
        return None

    async def _status(self) -> dict[str, Any]:
        jobs = await self._worker.metastore.list_jobs(SHOWN_JOBS)
        return {
            "roles": ["compactor"],
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
