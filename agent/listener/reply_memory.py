"""Limits the memory of replies that were made and not yet accepted by the kernel.

Place: a handler that may make a large reply reserves its size before it makes it (Fetch), or waits until there is room
(Metadata, descriptions, lists); the listener charges what every reply really takes, and releases what it sent. While
there is no room, it reads no further request of a connection with replies that are not sent.
Invariant: reservations are granted in order and only while they fit; a reply that is larger than the total is
made alone. What is charged may exceed the total by the replies that were being made at that moment.
A client that does not read its replies while others wait is closed (connection.py), so that none waits without end.
"""

from __future__ import annotations

import asyncio
from collections import deque


class ReplyMemory:
    """Bytes of replies. For one event loop; not thread-safe."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.in_use_bytes = 0

    @property
    def waiting(self) -> int:
        """Number of replies that wait for room."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether there is no room."""
        return self.in_use_bytes >= self._total

    async def reserve(self, size: int) -> None:
        """Return when `size` bytes are reserved; 0 waits for its turn only."""
        if not self._waiting and self._fits(size):
            self.in_use_bytes += size
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, granted)
        self._waiting.append(entry)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(size)
            else:
                self._waiting.remove(entry)
                self._grant()
            raise

    def charge(self, size: int) -> None:
        """Count bytes that are in use in any case."""
        self.in_use_bytes += size

    def release(self, size: int) -> None:
        """Release bytes that were reserved or charged."""
        self.in_use_bytes -= size
        if self._waiting:
            self._grant()

    def _fits(self, size: int) -> bool:
        return self.in_use_bytes + size <= self._total or self.in_use_bytes <= 0

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            if not granted.done():
                self.in_use_bytes += size
                granted.set_result(None)
