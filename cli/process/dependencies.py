"""What a process depends on: the metastore and the bucket, each with the watch that judges it.

Place: made by open_process.py before the roles, as an agent reports to others what its process reaches; shell.py starts
the watches (readiness.py).
Invariant: the bucket counts as answering only if it can be read and written (storage/objects/put_outcomes.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from headrace.metastore.process_context import ProcessContext
from headrace.storage.dependency import BUCKET, METASTORE, DependencyWatch
from headrace.storage.errors import NotFoundError
from headrace.storage.objects.put_outcomes import PROBE_KEY, PutOutcomes

METASTORE_PROBE_SECONDS, BUCKET_PROBE_SECONDS = 2.0, 5.0
"""Pauses between readiness probes: a cheap query and a commit, a GET, and a small PUT when it is due."""


class Dependencies:
    """Of one process."""

    def __init__(self, context: ProcessContext, own_failure: Callable[[], str | None]) -> None:
        """`own_failure`: why the heartbeats of the process's agent fail, although probes may be answered."""
        store, metastore, clock = context.store, context.metastore, context.clock
        self._puts = store if isinstance(store, PutOutcomes) else PutOutcomes(store, clock)
        self.metastore = DependencyWatch(
            METASTORE,
            probe=metastore.probe_commit,
            interval_seconds=METASTORE_PROBE_SECONDS,
            clock=clock,
            writes_so_far=metastore.commits_made,
            refusal=metastore.refusal,
            own_failure=own_failure,
        )
        self.bucket = DependencyWatch(BUCKET, self._probe_bucket, BUCKET_PROBE_SECONDS, clock)

    def reached(self) -> frozenset[str]:
        """The dependencies that answer this process: what it reports to other agents. The next question, a second
        later, gets what a new look found.
        """
        watches = (self.metastore, self.bucket)
        for watch in watches:
            watch.look_again()
        return frozenset(watch.name for watch in watches if watch.answers)

    async def _probe_bucket(self) -> None:
        with contextlib.suppress(NotFoundError):
            await self._puts.get(PROBE_KEY)  # as readers do; a HEAD needs fewer rights
        await self._puts.probe()
