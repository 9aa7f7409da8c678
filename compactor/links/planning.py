"""Job `plan-links`: ask for the jobs of each link.

Place: periodic, asked for by the active controller; run in the job loop of links.
Invariant: a job of a key is there once (the queue's rule), so a plan may be repeated. A link that is paused or dropped
gets no job, and the jobs that run end by themselves.
"""

from __future__ import annotations

from headrace.compactor.links.copy_job import copy_job
from headrace.config.link_configs import SHARES, is_paused, value_of
from headrace.jobs.kinds import LINK_TOPICS
from headrace.jobs.lease import Lease
from headrace.metastore.api.jobs import Job, JobApi
from headrace.metastore.api.links import LinkApi


class LinkPlanner:
    """Runs the job `plan-links`."""

    def __init__(self, links: LinkApi, jobs: JobApi) -> None:
        self._links, self._jobs = links, jobs

    async def handle(self, job: Job, lease: Lease) -> None:
        """Plan once. FencedError if the lease was lost."""
        configs = await self._links.link_configs()
        wanted = []
        for link, own in sorted(configs.items()):
            if is_paused(own):
                continue
            wanted.append(LINK_TOPICS.once(link))
            partitions = await self._links.linked_partitions(link)
            shares = min(int(value_of(own, SHARES)), max(len(partitions), 1))
            busy = {row.partition_key % shares for row in partitions}
            wanted += [copy_job(link, share, shares) for share in sorted(busy)]
        if wanted:
            await self._jobs.enqueue_jobs(wanted, by=lease.token)
