"""The active buffer: where the batches of many clients meet before they become one segment file.

Place: between validate and upload. Pure: it is told the time and never waits.
Invariant: a buffer is due `linger_s` after its first batch, however many follow, or as soon as it
holds `flush_bytes`; a request's batches are never split over two files, so each request waits for
one file only. If the process dies here nothing was acknowledged.
"""

from __future__ import annotations

import math

from headrace.agent.produce.pending import PendingRequest
from headrace.agent.produce.staged_file import Arrival, FileState, FlushReason, StagedFile


class ActiveBuffer:
    """At most one open file at a time. Times on Clock.monotonic(), in seconds."""

    def __init__(self, *, linger_s: float, flush_bytes: int) -> None:
        self._linger_s = linger_s
        self._flush_bytes = flush_bytes
        self.file: StagedFile | None = None

    def add(self, request: PendingRequest, arrivals: list[Arrival], image_offset: int, now: float) -> bool:
        """Take a request's batches (at least one); True when they opened a new file."""
        opened = self.file is None
        if self.file is None:
            self.file = StagedFile(now, image_offset)
        self.file.add(request, arrivals, image_offset)
        return opened

    @property
    def due_at(self) -> float:
        """When the linger of the open file ends; infinity while there is none."""
        return math.inf if self.file is None else self.file.trace.opened_at + self._linger_s

    @property
    def is_full(self) -> bool:
        """Whether the open file should be flushed now for its size."""
        return self.file is not None and self.file.size_bytes >= self._flush_bytes

    def close(self, reason: FlushReason, now: float) -> StagedFile | None:
        """The open file, closed; None when there is none. The next batch opens another."""
        file, self.file = self.file, None
        if file is not None:
            file.state = FileState.CLOSED
            trace = file.trace
            trace.closed_at = now
            trace.reason = reason
            trace.batch_count = sum(map(len, file.arrivals.values()))
            trace.size_bytes = file.size_bytes
            trace.appended_at = [request.appended_at for request in file.requests]
        return file
