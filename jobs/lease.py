"""The lease of one job, renewed while its handler works.

Place: between the runner and a handler, which reports its progress and gets its fencing token here. For the
janitor it is a read pin: files that were live when the lease started are kept as long as the lease is.
Invariant: the lease is counted from before the call that took or renewed it was sent. If another worker took the job,
or the lease ran out without an answer, the handler is cancelled: the metastore then refuses its actions,
and objects that it writes are orphans.
"""

from __future__ import annotations

import logging

from headrace.metastore.api.jobs import Job, JobApi, JobToken
from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError, HeadraceError

logger = logging.getLogger(__name__)

BEATS_PER_LEASE = 4


class Lease:
    """The lease that a handler gets with its job."""

    def __init__(self, api: JobApi, job: Job, clock: Clock, *, claimed_at: float, lease_ms: int) -> None:
        """`claimed_at`: the clock's monotonic time before the claim was sent."""
        self.job = job
        self.progress = job.progress
        """For people and for the next lease holder; sent with the next heartbeat. Assign to it to change it."""
        self._api, self._clock, self._lease_ms = api, clock, lease_ms
        self.held_until = claimed_at + lease_ms / 1000

    @property
    def token(self) -> JobToken:
        """The fencing token of every action."""
        return self.job.token

    async def save_progress(self, progress: str) -> None:
        """Set the progress and return after the metastore stored it. FencedError if the lease is lost."""
        self.progress = progress
        await self._beat()

    async def keep(self) -> None:
        """Renew until the lease is lost, then return."""
        while True:
            await self._clock.sleep(self._lease_ms / 1000 / BEATS_PER_LEASE)
            try:
                await self._beat()
            except FencedError as error:
                logger.warning("job lost: kind=%s key=%s error=%s", self.job.kind, self.job.key, error)
                return
            except HeadraceError as error:
                logger.warning("job heartbeat failed: kind=%s key=%s error=%s", self.job.kind, self.job.key, error)
                if self._clock.monotonic() >= self.held_until:
                    return

    async def _beat(self) -> None:
        sent_at = self._clock.monotonic()
        await self._api.heartbeat_job(self.token, self._lease_ms, self.progress)
        self.held_until = sent_at + self._lease_ms / 1000
