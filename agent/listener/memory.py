"""Limits the memory that producers' frames may use at once.

Place: between the length of a frame and the allocation of its memory.
Invariant: the reserved bytes stay within the total, except for one frame larger than the total, which is
admitted alone. Reservations are granted in order: a small frame never overtakes a large one, so none waits without
end, and a frame is admitted completely or not at all, so half-read frames cannot block each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

Granted = Callable[[], None]


class MemoryBudget:
    """Reservations of bytes. For one event loop; not thread-safe."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._in_use = 0
        self._waiting: OrderedDict[Granted, int] = OrderedDict()
        self._granting = False

    @property
    def in_use_bytes(self) -> int:
        return self._in_use

    @property
    def waiting(self) -> int:
        """Number of reservations that wait for room."""
        return len(self._waiting)

    def reserve(self, size: int, granted: Granted) -> bool:
        """True: `size` bytes are reserved. False: `granted` is called when they are, unless it is withdrawn
        before."""
        if not self._waiting and self._fits(size):
            self._in_use += size
            return True
        self._waiting[granted] = size
        return False

    def withdraw(self, granted: Granted) -> None:
        """Cancel a reservation that is still waiting."""
        del self._waiting[granted]
        self._grant()

    def release(self, size: int) -> None:
        """Release `size` reserved bytes."""
        self._in_use -= size
        if self._waiting:
            self._grant()

    def _fits(self, size: int) -> bool:
        return self._in_use + size <= self._total or self._in_use == 0

    def _grant(self) -> None:
        """Admit the waiting in order. A callback may release or withdraw: the running loop then takes that into
        account.
        """
        if self._granting:
            return
        self._granting = True
        try:
            while self._waiting and self._fits(next(iter(self._waiting.values()))):
                granted, size = self._waiting.popitem(last=False)
                self._in_use += size
                granted()
        finally:
            self._granting = False
