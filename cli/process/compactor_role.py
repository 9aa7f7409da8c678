"""The compactor as a role of a process: alone in it, or on a thread next to other roles.

Place: run by shell.py. Next to other roles the worker has a separate thread, event loop and connections; as the only
role it needs no thread.
Invariant of the only role: it registers nothing in the cluster, and no other process waits for it. If it crashes,
its leases expire and other workers continue.
Invariant of the thread: background work never runs on the event loop of the Kafka listener, because planning ten
thousand extents would block it. Both share the interpreter; docs/operate/COMPACTION.md says when to use a separate
process.
If the thread crashes, Kafka traffic continues and the leases of its jobs expire.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from headrace.compactor.worker import Worker
from headrace.config.listeners import COMPACTOR
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.log.effective_configs import set_for_broker
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.process_context import ProcessContext
from headrace.storage.supervision import end_tasks

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


Running = tuple[asyncio.AbstractEventLoop, asyncio.Event]
"""The thread's loop, and the event that stops it."""


class WorkerThread:
    """Implements Role: its methods run on the process's main loop."""

    title = COMPACTOR
    needs_bucket = False

    def __init__(
        self,
        context: ProcessContext,
        life: LifeKeeper,
        node_id: Callable[[], int | None],
        image: Callable[[], MetadataImage | None],
    ) -> None:
        """`life`: it names the life of the metastore for the worker's connections, too. `node_id` and `image`: of the
        agent or controller of this process, if it has them; an image is replaced as a whole, so any thread may read it.
        """
        self._process, self._life = context, life
        self._node_id, self._image = node_id, image
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()), name="worker", daemon=True)
        self._opened: Future[Running] = Future()

    async def start(self) -> None:
        """Start to look for jobs. Raises what Worker.open raises."""
        self._thread.start()
        await asyncio.wrap_future(self._opened)

    async def drain(self, grace_seconds: float) -> None:
        """Finish jobs within the grace period, then return the rest to the queue; once."""
        if self._thread.ident is not None:
            self._opened.add_done_callback(_end)  # at once, if it is open
            await asyncio.to_thread(self._thread.join)

    async def close(self, grace_seconds: float) -> None:
        """It holds nothing else."""

    def not_ready(self) -> None:
        """None: jobs wait."""
        return None

    async def _work(self) -> None:
        try:
            await self._work_until_stopped()
        finally:
            await end_tasks()

    async def _work_until_stopped(self) -> None:
        stopping = asyncio.Event()
        try:
            worker = await Worker.open(
                self._process.settings,
                self._process.registry,
                self._life,
                self._process.supervisor,
                self._node_id,
                self._said,
            )
        except BaseException as error:
            self._opened.set_exception(error)
            return
        worker.start()
        self._opened.set_result((asyncio.get_running_loop(), stopping))
        await stopping.wait()
        await worker.stop()
        await worker.close()

    def _said(self) -> Mapping[str, str] | None:
        node_id, image = self._node_id(), self._image()
        return None if node_id is None or image is None else set_for_broker(image, node_id)


def _end(opened: Future[Running]) -> None:
    if opened.exception() is None:
        loop, stopping = opened.result()
        loop.call_soon_threadsafe(stopping.set)
