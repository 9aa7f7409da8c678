"""The active buffer: where the batches of many clients meet before they become one segment file.

Place: between validate and upload. Pure: it takes the time as a parameter and never waits.
Invariant: at most one file is open; a request's batches are never split over two files, so each request waits for
one file only.
"""

from __future__ import annotations

from headrace.agent.produce.batches import Arrival, Stream
from headrace.agent.produce.flush_queue import FlushedFile
from headrace.agent.produce.pending import PendingRequest
from headrace.agent.produce.stages import ClosedFile, Runs
from headrace.agent.produce.trace import FileTrace, FlushReason
from headrace.agent.produce.waiting import WaitingRequests


class OpenFile:
    """The first stage of a segment file: it takes batches until the buffer closes it."""

    __slots__ = ("_runs", "first_image", "last_image", "opened_at", "size_bytes", "streams", "waiting")

    def __init__(self, opened_at: float, image_offset: int) -> None:
        self.opened_at = opened_at
        self.first_image = self.last_image = image_offset
        self.streams: set[Stream] = set()
        self.waiting = WaitingRequests()
        self.size_bytes = 0
        self._runs: Runs = {}

    def add(self, request: PendingRequest, arrivals: list[Arrival], image_offset: int) -> None:
        """Take a request's batches, all of them."""
        for arrival in arrivals:
            key = arrival.partition_key
            run = self._runs.get(key)
            if run is None:
                self._runs[key] = [arrival]
            else:
                run.append(arrival)
            self.streams.add((arrival.owner, key))
            self.size_bytes += len(arrival.data)
        self.waiting.add(request)
        self.last_image = image_offset

    def drop(self, streams: set[Stream]) -> list[Arrival]:
        """Remove and return the batches of these streams, in order."""
        hit = self.streams & streams
        return ClosedFile(self._runs).drop(hit) if hit else []

    def close(self, reason: FlushReason, now: float) -> FlushedFile:
        """The next stage: the file takes no more batches."""
        trace = FileTrace(
            self.opened_at,
            closed_at=now,
            reason=reason,
            batch_count=sum(map(len, self._runs.values())),
            size_bytes=self.size_bytes,
            appended_at=[request.appended_at for request in self.waiting.requests],
        )
        runs, self._runs = self._runs, {}
        return FlushedFile(ClosedFile(runs), self.streams, self.waiting, trace, (self.first_image, self.last_image))


class ActiveBuffer:
    """Buffer with at most one open file at a time. Times on Clock.monotonic(), in seconds."""

    def __init__(self, *, flush_bytes: int) -> None:
        self._flush_bytes = flush_bytes
        self.file: OpenFile | None = None

    def add(self, request: PendingRequest, arrivals: list[Arrival], image_offset: int, now: float) -> bool:
        """Take a request's batches (at least one); True when they opened a new file."""
        opened = self.file is None
        if self.file is None:
            self.file = OpenFile(now, image_offset)
        self.file.add(request, arrivals, image_offset)
        return opened

    @property
    def is_full(self) -> bool:
        """Whether the open file should be flushed now for its size."""
        return self.file is not None and self.file.size_bytes >= self._flush_bytes

    def close(self, reason: FlushReason, now: float) -> FlushedFile | None:
        """The open file, closed; None when there is none. The next batch opens another."""
        file, self.file = self.file, None
        return None if file is None else file.close(reason, now)
