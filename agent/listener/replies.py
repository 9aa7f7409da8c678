"""Sends the replies of one connection in the order of its requests, without copying record bytes.

Place: last step of every request, between its handler and the socket. asyncio joins the buffers it gets and copies
what the kernel does not accept at once. ReplyWriter therefore passes buffers to the kernel by gather writes, and
gives one small buffer to the transport if the kernel accepts no more. For a fast reader this costs as much as a join
(load/benchmarks/codec.py); for a slow one it avoids copies of its whole response.
Invariant: a reply is sent after all previous ones, except in answer to an agent that matches replies by correlation
id; nothing is sent after a request that ends the connection. The bytes of every reply are counted from its making
until the kernel accepts them, or the connection ends. Nothing is written directly while the transport holds bytes,
and on an encrypted connection never: the socket below it would send them as they are.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import struct
import termios
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.agent.access.quotas.client_traffic import CountedPair
from headrace.agent.access.quotas.enforcement import RequestUse
from headrace.agent.listener.memory import SMALL_BYTES, ConnectionReplies, MemoryBudget
from headrace.agent.listener.metrics import ListenerMetrics
from headrace.protocol.answers import with_throttle_time
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frames import RequestHeader
from headrace.protocol.request import Response

_LENGTH = struct.Struct(">i")
_QUEUED = struct.Struct("i")
"""What the kernel has of a socket's bytes, in the machine's order."""
_MAX_BUFFERS = 512
"""Buffers per gather write; Linux allows at most 1024."""
_PIECE_BYTES = 64 * 1024
_PINNED_TIMES = 4


class ReplyWriter:
    """The write side of one connection. The owner forwards pause_writing and resume_writing."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._socket: Any = None if self._is_encrypted else transport.get_extra_info("socket")
        self._queue: list[bytes | memoryview] = []
        self.pending_bytes = 0
        """Bytes that neither the kernel nor the transport has."""
        self._added_bytes = 0
        self.blocked = False
        """Whether the client reads too slowly for the bytes sent so far."""

    def begin(self) -> None:
        """Let the transport say when it holds bytes. It may say so at once: TLS has sent messages of its handshake."""
        # asyncio's TLS transport pauses at its limit, not above it
        self._transport.set_write_buffer_limits(high=1 if self._is_encrypted else 0, low=0)

    @property
    def empty(self) -> bool:
        """Whether the kernel has accepted everything."""
        return not self._queue and not self.blocked

    def add(self, buffers: Sequence[bytes | memoryview]) -> int:
        """Queue one response frame with its length; returns its bytes on the wire."""
        size = sum(map(len, buffers))
        self._queue.append(_LENGTH.pack(size))
        self._queue += buffers
        size += _LENGTH.size
        self.pending_bytes += size
        self._added_bytes += size
        return size

    def taken_bytes(self) -> int:
        """Return how many bytes the client's machine has taken since the connection began, about: the kernel reports a
        client that reads slowly only after each third of its buffer, which may be a megabyte."""
        socket = self._transport.get_extra_info("socket")
        try:
            (unsent,) = _QUEUED.unpack(fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(_QUEUED.size)))
        except OSError:  # the connection has ended
            unsent = 0
        return self._added_bytes - self.pending_bytes - self._transport.get_write_buffer_size() - int(unsent)

    def flush(self) -> None:
        """Send as much as the kernel accepts. After a socket error the connection is aborted."""
        while self._queue and not self.blocked and not self._transport.is_closing():
            if self._is_encrypted:
                self._hand_over_pieces()
            elif self._gather_write():
                self._hand_over_piece()

    def pause(self) -> None:
        """The transport holds bytes that the kernel did not accept."""
        self.blocked = True
        self._unpin()

    def resume(self) -> None:
        """The transport holds no bytes any more: flush() may continue."""
        self.blocked = False

    def clear(self) -> None:
        """Drop the queue: the connection is closed."""
        self._queue.clear()
        self.pending_bytes = 0

    def _unpin(self) -> None:
        """Copy what waits for a slow client, if it keeps much more in memory: views of file chunks do."""
        views = (buffer for buffer in self._queue if isinstance(buffer, memoryview))
        held = {id(view.obj): memoryview(view.obj).nbytes for view in views}
        if sum(held.values()) > _PINNED_TIMES * self.pending_bytes:
            self._queue = [b"".join(self._queue)]

    def _gather_write(self) -> bool:
        """One write; True if the kernel accepts no more for now."""
        batch = self._queue[:_MAX_BUFFERS]
        try:
            written = os.writev(self._socket.fileno(), batch)
        except BlockingIOError:
            return True
        except OSError:
            self._transport.abort()
            return False
        self.pending_bytes -= written
        if written == sum(map(len, batch)):  # the usual case, with dozens of small replies
            del self._queue[: len(batch)]
            return False
        whole = 0
        while whole < len(batch) and written >= len(batch[whole]):
            written -= len(batch[whole])
            whole += 1
        del self._queue[:whole]
        self._queue[0] = memoryview(self._queue[0])[written:]
        return True

    def _hand_over_pieces(self) -> None:
        """Small buffers together: each write is at least one TLS record."""
        count = size = 0
        for buffer in self._queue:
            if count and size + len(buffer) > _PIECE_BYTES:
                break
            count += 1
            size += len(buffer)
        if size > _PIECE_BYTES:
            self._hand_over_piece()
            return
        data = b"".join(self._queue[:count])
        del self._queue[:count]
        self.pending_bytes -= size
        self._transport.write(data)

    def _hand_over_piece(self) -> None:
        first = memoryview(self._queue[0])
        if len(first) > _PIECE_BYTES:
            self._queue[0] = first[_PIECE_BYTES:]
        else:
            del self._queue[0]
        self.pending_bytes -= min(len(first), _PIECE_BYTES)
        self._transport.write(first[:_PIECE_BYTES])


_LONGEST_THROTTLE_MS = 2**31 - 1
_PRODUCE = int(ApiKey.PRODUCE)


@dataclass(slots=True, eq=False)
class Slot:
    """One request's place in the order. Compared by identity."""

    header: RequestHeader
    """The request's header. The client id is as log lines show it: the slot may wait long for earlier replies."""
    received_at: float
    reserved_bytes: int
    budget: MemoryBudget
    """The budget of which the request's frame holds `reserved_bytes`, until the request is answered."""
    kept_bytes: int = 0
    """What the request holds of the budget besides its frame."""
    done: bool = False
    buffers: list[bytes | memoryview] | None = None
    """The reply once done; None sends nothing."""
    reply_bytes: int = 0
    """Counted in the reply memory."""
    has_records: bool = False
    """Whether the handler reserved memory for it: then it counts as records."""
    fatal: str = ""
    """The reason why the connection ends here; empty if it does not."""
    use: RequestUse | None = None
    """The use of quotas, if any apply to the request."""
    throttle_seconds: float = 0.0
    sender: CountedPair | None = None
    """What counts the request and its answer; None: nothing does."""
    made_at: float = math.nan
    """The time at which the reply was made; until it is sent it waits for earlier ones and for the client."""
    asked_wait_seconds: float = 0.0
    """How long the client asked to wait for records."""

    def keep(self, size_bytes: int) -> None:
        """Count what the request takes besides its frame. The next frames wait if that is too much."""
        self.kept_bytes = size_bytes
        self.budget.charge(size_bytes, of=self.reserved_bytes)

    def release(self) -> None:
        """The request is answered: its memory is free."""
        self.budget.release(self.reserved_bytes + self.kept_bytes, of=self.reserved_bytes)

    def take(self, response: Response) -> None:
        """Keep the reply, with the memory that its handler reserved for it."""
        self.buffers, self.reply_bytes = response.buffers, response.reserved_bytes
        self.has_records = response.reserved_bytes > 0
        self.throttle_seconds = response.throttle_seconds

    def throttle(self) -> float:
        """The reply is made: count it, and write its throttle time into it; the seconds."""
        size_bytes = sum(map(len, self.buffers)) if self.buffers is not None else 0
        seconds = max(self.throttle_seconds, self.use.answered(size_bytes) if self.use is not None else 0.0)
        if seconds and self.buffers is not None:
            throttle_ms = min(math.ceil(seconds * 1000), _LONGEST_THROTTLE_MS)
            self.buffers = with_throttle_time(self.header.api_key, self.header.api_version, self.buffers, throttle_ms)
        return seconds


@dataclass(slots=True)
class _Written:
    """A reply that the writer has, as far as the reply memory counts it."""

    size_bytes: int
    left_bytes: int
    has_records: bool
    at: float


class ReplyQueue:
    """Slots in arrival order, and the writer behind them."""

    def __init__(
        self,
        writer: ReplyWriter,
        metrics: ListenerMetrics,
        memory: ConnectionReplies,
        slow_seconds: float = math.inf,
        on_slow: Callable[[Slot, float], None] = lambda slot, now: None,
    ) -> None:
        """`on_slow`: called before a reply is sent that took `slow_seconds` or longer."""
        self._slow_seconds, self._on_slow = slow_seconds, on_slow
        self._writer = writer
        self._metrics = metrics
        self._memory = memory
        self._closed = False
        self._written: deque[_Written] = deque()
        self._written_bytes = 0
        """Of replies that the writer has and the reply memory counts."""
        self.held_bytes = 0
        """All that the reply memory counts for this connection."""
        self._held_records = 0
        """The part of it that counts as records."""
        self.slots: deque[Slot] = deque()
        """Requests without a reply that was sent or queued."""
        self.others = 0
        """How many of the slots are not of Produce."""
        self.fatal = ""
        """Set after the order reached a fatal slot: the replies before it are with the writer, nothing follows."""

    @property
    def finished(self) -> bool:
        """Whether the kernel has accepted everything, provided that nothing is appended."""
        return (not self.slots or bool(self.fatal)) and self._writer.empty

    def append(self, slot: Slot) -> None:
        """Take the next place."""
        self.slots.append(slot)
        self.others += slot.header.api_key != _PRODUCE

    def made(self, slot: Slot, now: float) -> None:
        """The slot is done: count what its reply takes, instead of what was reserved for it."""
        slot.made_at = now
        size = sum(map(len, slot.buffers)) if slot.buffers is not None and not slot.fatal and not self._closed else 0
        if not slot.has_records:
            self._memory.charge_other(size)
        elif size > slot.reply_bytes:
            self._memory.charge(size - slot.reply_bytes)
        else:
            self._memory.release(slot.reply_bytes - size)
        slot.reply_bytes = size
        if not self.held_bytes:
            self._memory.speed.begin(now)
        self.held_bytes += size
        self._held_records += size if slot.has_records else 0

    def is_too_slow(self, now: float) -> bool:
        """Return whether replies of some size are read too slowly, or not at all, or wait for one that was asked for
        before: called again and again while others wait.
        """
        return self.held_bytes > SMALL_BYTES and self._memory.speed.is_too_slow(now, self._writer.taken_bytes())

    def flush(self, now: float) -> None:
        """Send the next replies in order, as far as they are done and the client reads."""
        sent_bytes = 0
        while self.slots and self.slots[0].done and not self.fatal and not self._writer.blocked:
            slot = self.slots.popleft()
            self.others -= slot.header.api_key != _PRODUCE
            self.fatal = slot.fatal
            if slot.fatal:
                self._metrics.requests.left_unanswered(slot.header.api_key)
                break
            self._metrics.requests.answered(slot.header.api_key, seconds := now - slot.received_at)
            if seconds >= self._slow_seconds:
                self._on_slow(slot, now)
            if slot.buffers is not None:
                sent_bytes += self._write(slot, slot.buffers, now)
        self._sent(sent_bytes, now)

    def flush_in_any_order(self, now: float) -> None:
        """Send every reply that is done, for a peer that matches them by correlation id."""
        sent_bytes = 0
        left: deque[Slot] = deque()
        for slot in self.slots:
            if not slot.done or self.fatal or self._writer.blocked:
                left.append(slot)
                continue
            self.others -= slot.header.api_key != _PRODUCE
            self.fatal = slot.fatal
            if slot.fatal:
                self._metrics.requests.left_unanswered(slot.header.api_key)
                continue
            self._metrics.requests.answered(slot.header.api_key, seconds := now - slot.received_at)
            if seconds >= self._slow_seconds:
                self._on_slow(slot, now)
            if slot.buffers is not None:
                sent_bytes += self._write(slot, slot.buffers, now)
        self.slots = left
        self._sent(sent_bytes, now)

    def _write(self, slot: Slot, buffers: Sequence[bytes | memoryview], now: float) -> int:
        """Give a reply to the writer; its bytes on the wire."""
        self._written.append(_Written(slot.reply_bytes, slot.reply_bytes, slot.has_records, now))
        self._written_bytes += slot.reply_bytes
        return self._writer.add(buffers)

    def _sent(self, size_bytes: int, now: float) -> None:
        """Replies of this size are with the writer: release what the kernel has accepted."""
        self._metrics.sent_bytes.inc(size_bytes)
        self._writer.flush()
        sent = self._written_bytes - self._writer.pending_bytes
        if sent > 0:  # lengths before replies are not counted, so the writer may hold a little more
            self._written_bytes -= sent
            self._release(sent, now)

    def _release(self, size_bytes: int, now: float) -> None:
        """The kernel has accepted so many bytes more."""
        records, left = 0, size_bytes
        while left:
            first = self._written[0]
            part = min(left, first.left_bytes)
            first.left_bytes -= part
            left -= part
            records += part if first.has_records else 0
            if not first.left_bytes:
                self._written.popleft()
                if first.has_records:
                    self._memory.speed.read(first.size_bytes, now - first.at)
                if self._written:
                    self._written[0].at = now
        self.held_bytes -= size_bytes
        self._held_records -= records
        if records:
            self._memory.release(records)
        if size_bytes > records:
            self._memory.release_other(size_bytes - records)

    def clear(self) -> None:
        """Drop everything: the client has disconnected."""
        self._closed = True
        records, others = self._held_records, self.held_bytes - self._held_records
        self.held_bytes = self._held_records = self._written_bytes = 0
        for slot in self.slots:
            self._metrics.requests.left_unanswered(slot.header.api_key)
        self.slots.clear()
        self._written.clear()
        self.others = 0
        self._writer.clear()
        self._memory.release(records)
        self._memory.release_other(others)
