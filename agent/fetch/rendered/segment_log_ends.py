"""The ends of the lifecycle logs, as this agent knew them less than half a second ago.

Place: under long polls of lifecycle topics (lifecycle_topic.py).
Invariant: however many readers wait, the metastore gets at most two queries a second, and none if no reader waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metastore.api.segment_logs import LogEnds, SegmentLogApi
from headrace.storage.clock import Clock

AGE_MAX_SECONDS = 0.5


class KnownEnds:
    """Asked again when they are too old."""

    def __init__(self, logs: SegmentLogApi, clock: Clock) -> None:
        self._logs = logs
        self._clock = clock
        self._ends: Sequence[LogEnds] = ()
        self._asked_at = -AGE_MAX_SECONDS

    async def of(self, metadata_partition: int) -> LogEnds | None:
        """Return None while the first answer is missing. Errors of the metastore."""
        now = self._clock.monotonic()
        if now - self._asked_at >= AGE_MAX_SECONDS:
            self._asked_at = now  # readers that come meanwhile use the old answer
            self._ends = await self._logs.segment_log_ends()
        return self._ends[metadata_partition] if self._ends else None
