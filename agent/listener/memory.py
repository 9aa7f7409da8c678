"""Limits the memory that clients' frames and unread replies may use at once.

Place: between the length of a frame and the allocation of its memory; between the size of a reply and its making.
Three shares, each with a separate total, so that none can use up another:
    produce    frames of Produce requests, and what these take once they are decoded, until they are answered
    requests   frames of all other requests, and bytes that paused connections hold
    replies    replies (reply_memory.py), until the kernel has accepted them; "frame" means a reply there
Invariant of a MemoryBudget: the reserved bytes stay within the total, except for one large frame that is admitted
alone, and except for what `charge` adds without asking. Large frames leave `small_reserve` to small ones.
Clients take turns, and the frames of one client are granted in order; while a large frame waits, small ones use
their reserve only. So none waits without end, and a client with many connections delays another by one turn.
A frame is admitted completely or not at all, so half-read frames cannot block each other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

Granted = Callable[[], None]
Client = Sequence[str]
"""Principal, address and connection of one that waits. Principals take turns, so do addresses of a principal, and the
connections of an address. All that wait for one budget are named to the same depth."""


class Turns:
    """Reservations that wait, by client: the client with the next turn first."""

    def __init__(self) -> None:
        self._root: OrderedDict[str, Any] = OrderedDict()
        """A level for each part of a client's name, and in the last one what waits, with its bytes."""
        self._client_of: dict[Granted, Client] = {}

    def __len__(self) -> int:
        return len(self._client_of)

    def __contains__(self, granted: object) -> bool:
        return granted in self._client_of

    def add(self, client: Client, granted: Granted, size: int) -> None:
        """Wait behind what the client waits for already."""
        self._client_of[granted] = client
        self._levels(client)[-1][granted] = size

    def next_size(self) -> int:
        """Bytes of the reservation with the next turn, of which there is one."""
        found: Any = self._root
        while isinstance(found, OrderedDict):
            found = next(iter(found.values()))
        size: int = found
        return size

    def take(self) -> tuple[Granted, int]:
        """Remove the reservation with the next turn; its client has its next turn after all others."""
        level: Any = self._root
        while isinstance(inner := next(iter(level.values())), OrderedDict):
            level = inner
        granted: Granted = next(iter(level))
        return granted, self._remove(granted)

    def remove(self, granted: Granted) -> None:
        """It waits no longer."""
        self._remove(granted, has_had_its_turn=False)

    def _remove(self, granted: Granted, *, has_had_its_turn: bool = True) -> int:
        client = self._client_of.pop(granted)
        levels = self._levels(client)
        size: int = levels[-1].pop(granted)
        for level, name, inner in reversed(list(zip(levels, client, levels[1:], strict=False))):
            if not inner:
                del level[name]
            elif has_had_its_turn:
                level.move_to_end(name)
        return size

    def _levels(self, client: Client) -> list[OrderedDict[Any, Any]]:
        """Return the levels of the client's name, from the root on; missing ones are made."""
        levels = [self._root]
        for name in client:
            levels.append(levels[-1].setdefault(name, OrderedDict()))
        return levels


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

    def reserve(self, size: int, granted: Granted, client: Client = (), of: int | None = None) -> bool:
        """True: `size` bytes are reserved. False: `granted` is called when they are, unless it is withdrawn
        before. `of`: they belong to a frame of this size."""
        small = self._is_small(size if of is None else of)
        waiting = self._small if small else self._large
        if not waiting and self._fits(size, small=small):
            self._add(size, of)
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

    def has_room(self, size: int) -> bool:
        """Return whether a large frame of `size` bytes would be admitted now."""
        return not self._large and self._fits(size, small=False)

    @property
    def free_for_large(self) -> int:
        """Bytes that large frames may use besides what is in use."""
        return max(0, self._total - self._large_in_use - max(self._small_in_use, self._small_reserve))

    def _is_small(self, size: int) -> bool:
        return size <= self._small_bytes

    def _add(self, change: int, of: int | None = None) -> None:
        if self._is_small(change if of is None else of):
            self._small_in_use += change
        else:
            self._large_in_use += change

    def _fits(self, size: int, *, small: bool) -> bool:
        if small:
            if self._small_in_use + size <= self._small_reserve:
                return True
            return not self._large and (self.in_use_bytes + size <= self._total or self.in_use_bytes == 0)
        if self._large_in_use == 0 and self._small_in_use <= self._small_reserve:
            return True  # also if it is larger than the total
        return size <= self.free_for_large

    def _grant(self) -> None:
        """Admit the waiting in order. A callback may release or withdraw: the running loop then takes that into
        account.
        """
        if self._granting:
            return
        self._granting = True
        try:
            while self._grant_one(small=False) or self._grant_one(small=True):
                pass
        finally:
            self._granting = False

    def _grant_one(self, *, small: bool) -> bool:
        waiting = self._small if small else self._large
        if not waiting or not self._fits(waiting.next_size(), small=small):
            return False
        granted, size = waiting.take()
        if small:
            self._small_in_use += size
        else:
            self._large_in_use += size
        granted()
        return True
