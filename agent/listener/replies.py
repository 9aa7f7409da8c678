"""Replies of one connection, in the order of its requests.

Place: last step of every request, between its handler and the socket.
Invariant: a reply is sent after all previous ones, regardless of how long each took; nothing is sent after
a request that ends the connection.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headrace.agent.listener.frames import RequestHeader
from headrace.agent.listener.metrics import ListenerMetrics
from headrace.agent.listener.writer import ReplyWriter


@dataclass(slots=True, eq=False)
class Slot:
    """One request's place in the order. Compared by identity."""

    header: RequestHeader
    received_at: float
    reserved_bytes: int
    """Bytes of the memory budget; released when the request is answered."""
    done: bool = False
    buffers: list[bytes | memoryview] | None = None
    """The reply once done; None sends nothing."""
    fatal: str = ""
    """The reason why the connection ends here; empty if it does not."""


class ReplyQueue:
    """Slots in arrival order, and the writer behind them."""

    def __init__(self, writer: ReplyWriter, metrics: ListenerMetrics) -> None:
        self._writer = writer
        self._metrics = metrics
        self._slots: deque[Slot] = deque()
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

    def flush(self, now: float) -> None:
        """Send the next replies in order, as far as they are done and the client reads."""
        sent_bytes = 0
        while self._slots and self._slots[0].done and not self.fatal and not self._writer.blocked:
            slot = self._slots.popleft()
            self.fatal = slot.fatal
            if slot.fatal:
                break
            self._metrics.requests.answered(slot.header.api_key, now - slot.received_at)
            if slot.buffers is not None:
                sent_bytes += self._writer.add(slot.buffers)
        self._metrics.sent_bytes.inc(sent_bytes)
        self._writer.flush()

    def clear(self) -> None:
        """Drop everything: the client has disconnected."""
        self._slots.clear()
        self._writer.clear()
