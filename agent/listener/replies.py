"""Replies of one connection, in the order of its requests.

Place: last step of every request, between its handler and the socket.
Invariant: a reply is sent after all previous ones, regardless of how long each took, except in answer to an agent
that matches replies by correlation id; nothing is sent after
a request that ends the connection. The bytes of every reply are counted from its making until the kernel accepts
them, or the connection ends.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.agent.access.quotas.enforcement import RequestUse
from headrace.agent.access.quotas.heavy_clients import CountedPair
from headrace.agent.listener.memory import MemoryBudget
from headrace.agent.listener.metrics import ListenerMetrics
from headrace.agent.listener.reply_memory import SMALL_BYTES, ConnectionReplies
from headrace.agent.listener.writer import ReplyWriter
from headrace.protocol.answers import with_throttle_time
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frames import RequestHeader
from headrace.protocol.request import Response

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
        self._slots: deque[Slot] = deque()
        self.others = 0
        """How many of the slots are not of Produce."""
        self.fatal = ""
        """Set after the order reached a fatal slot: the replies before it are with the writer, nothing follows."""

    def __len__(self) -> int:
        """Requests without a reply that was sent or queued."""
        return len(self._slots)

    @property
    def finished(self) -> bool:
        """Whether the kernel has accepted everything, provided that nothing is appended."""
        return (not self._slots or bool(self.fatal)) and self._writer.empty

    def append(self, slot: Slot) -> None:
        """Take the next place."""
        self._slots.append(slot)
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
        while self._slots and self._slots[0].done and not self.fatal and not self._writer.blocked:
            slot = self._slots.popleft()
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
        for slot in self._slots:
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
        self._slots = left
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
        for slot in self._slots:
            self._metrics.requests.left_unanswered(slot.header.api_key)
        self._slots.clear()
        self._written.clear()
        self.others = 0
        self._writer.clear()
        self._memory.release(records)
        self._memory.release_other(others)
