"""The memory of the frame that one connection reads: admitted before the frame is allocated, handed to its request.

Place: between the head of a frame and its allocation (frames.py); takes it from the shares of memory.py.
Invariant: at most one frame per connection is admitted or waits. A frame of an API and size that is not read raises
before anything is reserved. While others wait for memory, a frame has to make progress, or it `stalls`.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.agent.listener.host import ConnectionHost
from headrace.agent.listener.memory import Client, MemoryBudget
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frames import FrameHead
from headrace.protocol.request import ClientConnection
from headrace.storage.errors import InvalidError

REQUEST_BYTES = 1024
"""What a request in progress uses besides its frame, about."""
STALL_SECONDS = 2.0
"""While others wait for memory, a started frame must make progress in this time,"""
START_SECONDS = 5.0
HURRIED_BYTES_PER_SECOND = 256 * 1024
"""Least rate at which bytes arrive after the first 5 s."""
WHOLE_SECONDS = 30.0
"""A frame of any size is complete after so many more: Kafka's producers then give it up (request.timeout.ms)."""


def _refused(head: FrameHead) -> None:
    """The connection has ended."""


class FrameMemory:
    """The memory of frames, for one connection."""

    client: Client = ("", "", "")
    """Principal, address and connection: they take turns."""

    def __init__(self, host: ConnectionHost, admitted: Callable[[FrameHead], None]) -> None:
        """`admitted` is called for a frame that had to wait: open it, but start no request within the call."""
        self._host = host
        self._admitted = admitted
        self._budget = host.requests
        """The share that the frame uses or waits for."""
        self._reserved_bytes = 0
        self._awaited: FrameHead | None = None
        self._fetching = False
        self._began_at = 0.0
        self._progress_at = 0.0

    @property
    def waits(self) -> bool:
        """Whether a frame waits for memory, or for the answer to the Fetch before it."""
        return self._awaited is not None

    def admit(self, head: FrameHead, client: ClientConnection) -> bool:
        """Return whether the frame may be opened now; InvalidError if its API takes no frame of that size."""
        allowed, limit = self._host.limits.largest_frame(head.api_key, client)
        if head.size > allowed:
            self._host.metrics.refused(limit)
            raise InvalidError(
                f"frame larger than its API takes: api_key={head.api_key} size={head.size} max={allowed}"
            )
        if head.api_key == ApiKey.FETCH and self._fetching:
            self._awaited = head
            return False
        return self._reserve(head)

    def saw_bytes(self) -> None:
        """Bytes arrived while a frame is open."""
        if self._reserved_bytes:
            self._progress_at = self._host.clock.monotonic()
            if self._is_produce():
                self._host.produce_bytes.saw(self._progress_at)

    def take(self) -> tuple[int, MemoryBudget]:
        """(bytes, their share) of the frame, which is complete: the caller gives them back."""
        size, self._reserved_bytes = self._reserved_bytes, 0
        if size and self._is_produce():
            self._host.produce_bytes.half_received -= 1
        return size, self._budget

    def drop(self) -> None:
        """Give up the frame, whether it waits or is half read."""
        if self._awaited is not None:
            waits_for_fetch = self._awaited.api_key == ApiKey.FETCH and self._fetching
            self._awaited = None
            if not waits_for_fetch:
                self._budget.withdraw(self._on_memory)
        size, budget = self.take()
        budget.release(size)

    def release(self) -> None:
        """The connection has ended: admit nothing more, and hold no reference to it."""
        self._admitted = _refused

    def fetch_started(self) -> None:
        """The next Fetch waits for the answer to this one, so that their replies do not pile up."""
        self._fetching = True

    def fetch_answered(self) -> None:
        """A Fetch that waits may be read now."""
        self._fetching = False
        head = self._awaited
        if head is not None and head.api_key == ApiKey.FETCH:
            self._awaited = None
            if self._reserve(head):
                self._admitted(head)

    def holds_needed_memory(self) -> bool:
        """Return whether a half-read frame holds memory that others wait for."""
        return self._reserved_bytes > 0 and self._budget.waiting > 0

    def stalls(self, now: float, filled_bytes: int) -> bool:
        """Return whether the open frame, of which `filled_bytes` arrived, comes too slowly while others wait."""
        rate = max(HURRIED_BYTES_PER_SECOND, self._reserved_bytes / WHOLE_SECONDS)
        allowed = START_SECONDS + filled_bytes / rate
        return now - self._progress_at > STALL_SECONDS or now - self._began_at > allowed

    def _reserve(self, head: FrameHead) -> bool:
        self._budget = self._host.budget if head.api_key == ApiKey.PRODUCE else self._host.requests
        if not self._budget.reserve(head.size + REQUEST_BYTES, self._on_memory, self.client):
            self._awaited = head
            return False
        self._reserved(head)
        return True

    def _reserved(self, head: FrameHead) -> None:
        self._reserved_bytes = head.size + REQUEST_BYTES
        self._began_at = self._progress_at = self._host.clock.monotonic()
        if self._is_produce():
            self._host.produce_bytes.half_received += 1
            self._host.produce_bytes.saw(self._began_at)

    def _on_memory(self) -> None:
        """The budget granted what `_awaited` needs."""
        assert self._awaited is not None
        head, self._awaited = self._awaited, None
        self._reserved(head)
        self._admitted(head)

    def _is_produce(self) -> bool:
        return self._budget is self._host.budget
