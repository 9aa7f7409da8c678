"""Limits the memory that clients' frames and unread replies may use at once.

Place: between the length of a frame and the allocation of its memory; between the size of a reply and its making.
Three shares, each with a separate total, so that none can use up another:
    produce    frames of Produce requests, and what these take once they are decoded, until they are answered
    requests   frames of all other requests, and bytes that paused connections hold
    replies    replies (reply_memory.py), until the kernel has accepted them
Invariant of a MemoryBudget: the reserved bytes stay within the total, except for one large frame that is admitted
alone, and except for what `charge` adds without asking. Large frames leave `small_reserve` to small ones.
Clients take turns, and the frames of one client are granted in order; while a large frame waits, small ones use
their reserve only. So none waits without end, and a client with many connections delays another by one turn.
A frame is admitted completely or not at all, so half-read frames cannot block each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

Granted = Callable[[], None]


class Turns:
    """Frames that wait, by client: the client with the next turn first."""

    def __init__(self) -> None:
        self._by_client: OrderedDict[str, OrderedDict[Granted, int]] = OrderedDict()
        self._client_of: dict[Granted, str] = {}

    def __len__(self) -> int:
        return len(self._client_of)

    def __contains__(self, granted: object) -> bool:
        return granted in self._client_of

    def add(self, client: str, granted: Granted, size: int) -> None:
        """Wait behind the client's other frames."""
        self._client_of[granted] = client
        self._by_client.setdefault(client, OrderedDict())[granted] = size

    def next_size(self) -> int:
        """Bytes of the frame with the next turn, of which there is one."""
        return next(iter(next(iter(self._by_client.values())).values()))

    def take(self) -> tuple[Granted, int]:
        """Remove the frame with the next turn; its client has its next turn after all others."""
        client = next(iter(self._by_client))
        granted, size = self._by_client[client].popitem(last=False)
        del self._client_of[granted]
        if self._by_client[client]:
            self._by_client.move_to_end(client)
        else:
            del self._by_client[client]
        return granted, size

    def remove(self, granted: Granted) -> None:
        """It waits no longer."""
        client = self._client_of.pop(granted)
        del self._by_client[client][granted]
        if not self._by_client[client]:
            del self._by_client[client]


class MemoryBudget:
    """Reservations of bytes. For one event loop; not thread-safe."""

    def __init__(self, total_bytes: int, *, small_bytes: int = 0, small_reserve: int = 0) -> None:
        """A frame of at most `small_bytes` is a small one."""
        self._total = total_bytes
        self._small_bytes = small_bytes
        self._small_reserve = small_reserve
        self._small_in_use = 0
        self._large_in_use = 0
        self._small = Turns()
        self._large = Turns()
        self._granting = False

    @property
    def in_use_bytes(self) -> int:
        return self._small_in_use + self._large_in_use

    @property
    def waiting(self) -> int:
        """Number of reservations that wait for room."""
        return len(self._small) + len(self._large)

    @property
    def is_tight(self) -> bool:
        """Whether a frame waits, or less than half is free."""
        return self.waiting > 0 or 2 * self.in_use_bytes > self._total

    def reserve(self, size: int, granted: Granted, client: str = "") -> bool:
        """True: `size` bytes are reserved. False: `granted` is called when they are, unless it is withdrawn
        before."""
        waiting = self._small if size <= self._small_bytes else self._large
        if not waiting and self._fits(size):
            self._add(size)
            return True
        waiting.add(client, granted, size)
        return False

    def charge(self, size: int, of: int | None = None) -> None:
        """Count `size` bytes that are in use in any case. `of`: they belong to a frame of this size."""
        self._add(size, of)

    def withdraw(self, granted: Granted) -> None:
        """Cancel a reservation that is still waiting."""
        (self._small if granted in self._small else self._large).remove(granted)
        self._grant()

    def release(self, size: int, of: int | None = None) -> None:
        """Release `size` bytes that were reserved or charged at once, or for a frame of size `of`."""
        self._add(-size, size if of is None else of)
        if self._small or self._large:
            self._grant()

    def _add(self, change: int, of: int | None = None) -> None:
        if (change if of is None else of) <= self._small_bytes:
            self._small_in_use += change
        else:
            self._large_in_use += change

    def _fits(self, size: int) -> bool:
        if size <= self._small_bytes:
            if self._small_in_use + size <= self._small_reserve:
                return True
            return not self._large and (self.in_use_bytes + size <= self._total or self.in_use_bytes == 0)
        if self._large_in_use == 0 and self._small_in_use <= self._small_reserve:
            return True  # also if it is larger than the total
        return self._large_in_use + max(self._small_in_use, self._small_reserve) + size <= self._total

    def _grant(self) -> None:
        """Admit the waiting in order. A callback may release or withdraw: the running loop then takes that into
        account.
        """
        if self._granting:
            return
        self._granting = True
        try:
            while self._grant_one(self._large) or self._grant_one(self._small):
                pass
        finally:
            self._granting = False

    def _grant_one(self, waiting: Turns) -> bool:
        if not waiting or not self._fits(waiting.next_size()):
            return False
        granted, size = waiting.take()
        self._add(size)
        granted()
        return True
