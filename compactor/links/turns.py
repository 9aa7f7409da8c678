"""Let jobs of links take turns: they run for minutes, and a worker has fewer slots than there may be jobs.

Place: asked by the jobs `link-topics` (discovery.py) and `link-copy` (copy_job.py) now and then.
Invariant: a job that ends for another one is asked for again by the next plan, so each gets its turn within about
TURN_SECONDS for each job that waits.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.metastore.api.reports import ReportApi

TURN_SECONDS = 10.0
OVERDUE_MS = 3_000
"""A free slot takes a job within a few seconds."""


async def others_wait(reports: ReportApi, kinds: Collection[str]) -> bool:
    """Return whether a job of these kinds has been due for a while, and no worker has taken it."""
    return any(count.kind in kinds and count.overdue_ms > OVERDUE_MS for count in await reports.count_jobs())
