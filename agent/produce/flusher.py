"""The open file, where the batches of many clients meet, until the policy closes it.

Place: between the pipeline, which appends requests, and the flush queue. ActiveBuffer is pure; Flusher is the clock
and the event loop around a pure rule (flush_policy.py), and alone closes the buffer.
The clients that could still add to the file are judged, too (ClientActivity). A connection is free while it has no
unanswered request: it may send at any time. A connection's depth is the number of requests that it keeps in flight,
which is the most unanswered ones at once, seen lately. It refills from an answer until it is at its depth again: it
sends the next requests as soon as it can.
Batches of topics with low.latency.enable are in a separate file, if all of their request's are: it may be inline
(inline_policy.py), and closes as soon as no other inline file is being committed, as it costs no request; while a
client is in the middle of sending its next requests, a moment later: one commit for all of them costs much less.
Invariant: at most one file of each kind is open; a request's batches are never split over two files, so each request
waits for one file only. A stream is in one open file only: a small request follows the stream's earlier ones into the
file for the bucket, and before a stream goes there, its inline file is closed. So files close in the order of each
stream. A file is judged at least every `idle_s` while it is open. After that, and after Produce bytes arrived, it is
judged once more when a turn of the loop has brought none: so "no more bytes" means that the sockets were read and
empty, not that the loop had no time to look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.agent.listener.host import ProduceBytes
from headrace.agent.produce.files import (
    ClosedFile,
    FileTrace,
    FlushedFile,
    FlushQueue,
    FlushReason,
    Runs,
    WaitingRequests,
)
from headrace.agent.produce.flush_policy import TIME_EPSILON_S, FlushPolicy, FlushVerdict, Situation
from headrace.agent.produce.inline_policy import InlinePolicy
from headrace.agent.produce.receive import Received
from headrace.agent.produce.requests import Arrival, PendingRequest, Stream
from headrace.protocol.request import ClientConnection
from headrace.storage.clock import Clock


class OpenFile:
    """The first stage of a segment file: it takes batches until the buffer closes it."""

    __slots__ = (
        "_runs",
        "first_image",
        "last_image",
        "may_be_inline",
        "opened_at",
        "size_bytes",
        "streams",
        "waiting",
    )

    def __init__(self, opened_at: float, image_offset: int, *, may_be_inline: bool = False) -> None:
        self.may_be_inline = may_be_inline
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
        images = (self.first_image, self.last_image)
        return FlushedFile(
            ClosedFile(runs), self.streams, self.waiting, trace, images, may_be_inline=self.may_be_inline
        )


class ActiveBuffer:
    """Buffer with at most one open file for the bucket, and one that may be inline. Times on Clock.monotonic(), in
    seconds."""

    def __init__(self, *, flush_bytes: int) -> None:
        self._flush_bytes = flush_bytes
        self.file: OpenFile | None = None
        """The file for the bucket."""
        self.inline: OpenFile | None = None
        """The file that may be inline."""

    @property
    def files(self) -> list[OpenFile]:
        """Those that are open."""
        return [file for file in (self.file, self.inline) if file is not None]

    def add(
        self,
        request: PendingRequest,
        arrivals: list[Arrival],
        image_offset: int,
        now: float,
        *,
        may_be_inline: bool = False,
    ) -> bool:
        """Take a request's batches (at least one); True when they opened a new file."""
        file = self.inline if may_be_inline else self.file
        opened = file is None
        if file is None:
            file = OpenFile(now, image_offset, may_be_inline=may_be_inline)
            if may_be_inline:
                self.inline = file
            else:
                self.file = file
        file.add(request, arrivals, image_offset)
        return opened

    @property
    def is_full(self) -> bool:
        """Whether the open file for the bucket should be flushed now for its size."""
        return self.file is not None and self.file.size_bytes >= self._flush_bytes

    def close(self, reason: FlushReason, now: float) -> FlushedFile | None:
        """The open file for the bucket, closed; None when there is none. The next batch opens another."""
        file, self.file = self.file, None
        return None if file is None else file.close(reason, now)

    def close_inline(self, reason: FlushReason, now: float) -> FlushedFile | None:
        """The same of the file that may be inline."""
        file, self.inline = self.inline, None
        return None if file is None else file.close(reason, now)


EARLY_FILES_MAX = 5
"""Number of unsettled files with which another early file would only wait behind them."""
DEPTH_REQUESTS = 20
"""A connection that stays below its depth for so many requests has a lower one."""


class ClientActivity:
    """Connections by what they can be expected to do next. Times on Clock.monotonic(), in seconds."""

    def __init__(self, window_s: float, refill_s: float) -> None:
        self._window_s = window_s
        self._refill_s = refill_s
        self._waiting = 0
        """Connections with an unanswered request."""
        self._free: dict[ClientConnection, float] = {}
        """Connections without one, by the time of their last answer, the longest silent first."""
        self._refilling: dict[ClientConnection, float] = {}
        """Connections below their depth, in the same way."""

    def sent(self, connection: ClientConnection) -> None:
        """A request with acks other than 0 was appended to the open file."""
        if not connection.produce_unanswered:
            self._waiting += 1
            self._free.pop(connection, None)
        connection.produce_unanswered += 1
        connection.produce_below_depth += 1
        if (
            connection.produce_unanswered >= connection.produce_depth
            or connection.produce_below_depth >= DEPTH_REQUESTS
        ):
            connection.produce_depth = connection.produce_unanswered
            connection.produce_below_depth = 0
            self._refilling.pop(connection, None)

    def answered(self, connection: ClientConnection, now: float) -> None:
        """One of its requests was answered."""
        connection.produce_unanswered -= 1
        if not connection.produce_unanswered:
            self._waiting -= 1
        _forget(self._free, now - self._window_s)
        _forget(self._refilling, now - self._refill_s)
        if connection.closed:
            return
        if not connection.produce_unanswered:
            self._free[connection] = now
        self._refilling.pop(connection, None)
        self._refilling[connection] = now

    def all_wait(self, now: float) -> bool:
        """Return whether every active connection waits for an answer, and there is one."""
        _forget(self._free, now - self._window_s)
        return self._waiting > 0 and not self._free

    def any_refills(self, now: float) -> bool:
        """Return whether a connection below its depth was answered a moment ago."""
        _forget(self._refilling, now - self._refill_s)
        return bool(self._refilling)

    def any_sends_more(self, now: float) -> bool:
        """Return whether such a connection has sent the first of its next requests."""
        return self.any_refills(now) and any(connection.produce_unanswered for connection in self._refilling)


def _forget(answered_at: dict[ClientConnection, float], before: float) -> None:
    """Remove the first connections as far as they were answered earlier, or are gone."""
    while answered_at:
        connection, at = next(iter(answered_at.items()))
        if at >= before and not connection.closed:
            return
        del answered_at[connection]


class Flusher:
    """`closed` takes each file; `queue` has the files that have no answer yet."""

    def __init__(
        self,
        buffer: ActiveBuffer,
        policy: FlushPolicy,
        inline: InlinePolicy,
        seen: ProduceBytes,
        clock: Clock,
        *,
        queue: FlushQueue,
        closed: Callable[[FlushedFile], None],
    ) -> None:
        self._buffer = buffer
        self._policy = policy
        self._inline = inline
        self._seen = seen
        self._clients = ClientActivity(policy.limits.linger_s, policy.limits.idle_s)
        self._clock = clock
        self._queue = queue
        self._closed = closed
        self._opened = asyncio.Event()
        self._is_looking = False
        self._reads_before = 0

    def append(self, received: Received, connection: ClientConnection) -> None:
        """Put a request's batches into the open file, and close that if it is full."""
        now = self._clock.monotonic()
        self._seen.saw(now)
        if received.pending.wants_answer:
            self._clients.sent(connection)
            received.pending.before_answer = lambda: self._clients.answered(connection, self._clock.monotonic())
        arrivals = received.arrivals
        may_be_inline = self._may_be_inline(arrivals, now, connection) if received.low_latency else False
        if not may_be_inline and self._buffer.inline is not None and _shares_stream(self._buffer.inline, arrivals):
            self.flush_inline(FlushReason.ORDER)
        if self._buffer.add(received.pending, arrivals, received.image_offset, now, may_be_inline=may_be_inline):
            self._opened.set()
        if self._buffer.is_full:
            self.flush(FlushReason.SIZE)
        else:
            self.look_soon()

    def _may_be_inline(self, arrivals: list[Arrival], now: float, connection: ClientConnection) -> bool:
        """Return whether a request of topics with low.latency.enable goes into the file that may be inline, which has
        room for it then.
        """
        self._inline.asked_at = now
        size = sum([len(arrival.data) for arrival in arrivals])
        if self._inline.is_refused(size, now, connection.peer.rpartition(":")[0]):
            return False
        if self._buffer.file is not None and _shares_stream(self._buffer.file, arrivals):
            return False
        file = self._buffer.inline
        if file is not None and file.size_bytes + size > self._inline.limits.file_bytes:
            self.flush_inline(FlushReason.SIZE)
        return True

    async def opens(self) -> None:
        """Return once a file is open; at once if one was open shortly before."""
        await self._opened.wait()

    def flush_inline(self, reason: FlushReason) -> None:
        """Close the open file that may be inline, if there is one."""
        file = self._buffer.close_inline(reason, self._clock.monotonic())
        if file is not None:
            self._closed(file)

    def flush(self, reason: FlushReason) -> None:
        """Close the open file for the bucket, if there is one."""
        now = self._clock.monotonic()
        file = self._buffer.close(reason, now)
        if file is not None:
            self._policy.closed(reason, file.trace.size_bytes, now)
            self._closed(file)

    def look_soon(self) -> None:
        """Judge the open files once a turn of the loop has brought no further bytes."""
        if self._is_looking:
            return
        if self._buffer.inline is not None or (self._policy.limits.rate and self._buffer.file is not None):
            self._is_looking = True
            self._await_quiet_turn()

    def _await_quiet_turn(self) -> None:
        # a callback scheduled now runs before the reads of the next turn, the one that it schedules after them
        self._reads_before = self._seen.reads
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: loop.call_soon(self._turn_ended))

    def _turn_ended(self) -> None:
        if not self._buffer.files:
            self._is_looking = False
        elif self._seen.reads != self._reads_before:
            self._await_quiet_turn()
        else:
            self._is_looking = False
            now = self._clock.monotonic()
            self._judge_inline(now)
            self._judge(now, clients_wait=not self._seen.half_received and self._clients.all_wait(now))

    async def run(self) -> None:
        """Close files by time, until cancelled."""
        limits = self._policy.limits
        longest = limits.idle_s if limits.rate else limits.linger_s
        while True:
            if not self._buffer.files:
                self._opened.clear()
                await self._opened.wait()
            now = self._clock.monotonic()
            waits = [longest]
            verdict = self._judge(now, clients_wait=False)
            if verdict is not None and verdict.reason is None:
                waits.append(verdict.again_at - now)
            if (inline := self._buffer.inline) is not None:
                if now >= inline.opened_at + limits.linger_s - TIME_EPSILON_S:
                    self.flush_inline(FlushReason.LINGER)
                else:
                    waits.append(inline.opened_at + limits.linger_s - now)
                    if now < inline.opened_at + limits.idle_s:
                        waits.append(inline.opened_at + limits.idle_s - now)
            if len(waits) > 1:
                self.look_soon()
                await self._clock.sleep(min(waits))

    def _judge_inline(self, now: float) -> None:
        """Close the file that may be inline, if no other one is being committed, and no client is in the middle of
        sending its next requests: then it waits for these, `idle_s` at most.
        """
        file = self._buffer.inline
        if file is None or self._queue.commits_inline:
            return
        if now >= file.opened_at + self._policy.limits.idle_s - TIME_EPSILON_S or not self._clients.any_sends_more(now):
            self.flush_inline(FlushReason.READY)

    def _judge(self, now: float, *, clients_wait: bool) -> FlushVerdict | None:
        """Decide whether to flush the open file for the bucket, and flush it if so. None if it is not open."""
        file = self._buffer.file
        if file is None:
            return None
        unsettled = len(self._queue.files)
        found = Situation(
            opened_at=file.opened_at,
            size_bytes=file.size_bytes,
            last_byte_at=self._seen.last_at,
            clients_wait=clients_wait,
            expects_more=unsettled > 0 or self._clients.any_refills(now),
            congested=unsettled >= EARLY_FILES_MAX or self._seen.budget.waiting > 0,
        )
        verdict = self._policy.judge(found, now)
        if verdict.reason is not None:
            self.flush(verdict.reason)
        return verdict


def _shares_stream(file: OpenFile, arrivals: list[Arrival]) -> bool:
    return not file.streams.isdisjoint([(arrival.owner, arrival.partition_key) for arrival in arrivals])
