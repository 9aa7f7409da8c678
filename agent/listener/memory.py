"""Limits the memory that frames of clients may use at once, as well as their unread replies.

Place: between the length of a frame and the allocation of its memory; between the size of a reply and its making.
Three shares, each with a separate total, so that none can use up another:
    produce    frames of Produce requests, and what these take once they are decoded, until they are answered
    requests   frames of all other requests, and bytes that paused connections hold
    replies    replies (ReplyMemory), until the kernel has accepted them; "frame" means a reply there
Invariant of a MemoryBudget: the reserved bytes stay within the total, except for one large frame that is admitted
alone, and except for what `charge` adds without asking. Large frames leave `small_reserve` to small ones.
Clients take turns, and the frames of one client are granted in order; while a large frame waits, small ones use
their reserve only. So none waits without end, and a client with many connections delays another by one turn.
A frame is admitted completely or not at all, so half-read frames cannot block each other.

A Fetch reserves the size of its records before it reads them, a request with a long answer waits until there is
room; the listener charges what every reply really takes, and releases what it sent. Without room, it reads no
further request of a connection with replies that are not sent.
    records    of Fetch and ShareFetch: large ones may use what is not the reserve
    others     all other replies, and records of up to SMALL_BYTES for each connection: a quarter is their reserve
Records that do not fit are made fewer first: `reserve` grants less than the asked bytes, but always a batch. A
connection gets at most PARTS of what its address has left, an address of what its principal has left, a principal of
what is free; and no more than it reads in ANSWER_SECONDS at the speed of its last answers (ReadingSpeed).
Invariant of ReplyMemory: reservations are granted only while they fit; records larger than the total are made alone.
What is charged may exceed the total by the replies that were being made at that moment. A client that reads its
replies too slowly while others wait is closed (connection.py), so that none waits without end.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
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
        self.waiting = 0
        """Number of reservations that wait for room."""
        self._granting = False

    @property
    def in_use_bytes(self) -> int:
        return self._small_in_use + self._large_in_use

    @property
    def is_tight(self) -> bool:
        """Whether a frame waits, or less than half is free."""
        return self.waiting > 0 or 2 * self.in_use_bytes > self._total

    def reserve(self, size: int, granted: Granted, client: Client = (), of: int | None = None) -> bool:
        """True: `size` bytes are reserved. False: `granted` is called when they are, unless it is withdrawn
        before. `of`: they belong to a frame of this size."""
        small = (size if of is None else of) <= self._small_bytes
        turns = self._small if small else self._large
        if not (self.waiting and turns) and self._fits(size, small=small):
            self.charge(size, of)
            return True
        turns.add(client, granted, size)
        self.waiting += 1
        return False

    def charge(self, size: int, of: int | None = None) -> None:
        """Count `size` bytes that are in use in any case; negative: take them back, without granting any. `of`: they
        belong to a frame of this size."""
        if (size if of is None else of) <= self._small_bytes:
            self._small_in_use += size
        else:
            self._large_in_use += size

    def withdraw(self, granted: Granted) -> None:
        """Cancel a reservation that is still waiting."""
        (self._small if granted in self._small else self._large).remove(granted)
        self.waiting -= 1
        self._grant()

    def release(self, size: int, of: int | None = None) -> None:
        """Release `size` bytes that were reserved or charged at once, or for a frame of size `of`."""
        self.charge(-size, size if of is None else of)
        if self.waiting:
            self._grant()

    def has_room(self, size: int) -> bool:
        """Return whether a large frame of `size` bytes would be admitted now."""
        return not self._large and self._fits(size, small=False)

    @property
    def free_for_large(self) -> int:
        """Bytes that large frames may use besides what is in use."""
        return max(0, self._total - self._large_in_use - max(self._small_in_use, self._small_reserve))

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
        turns = self._small if small else self._large
        if not turns or not self._fits(turns.next_size(), small=small):
            return False
        granted, size = turns.take()
        self.waiting -= 1
        if small:
            self._small_in_use += size
        else:
            self._large_in_use += size
        granted()
        return True


FIRST_BYTES = 1024 * 1024
LEAST_BYTES = 64 * 1024
"""Records of this size are given to the slowest client."""
ANSWER_SECONDS = 4.0
"""How long a client should take for an answer."""
QUICK_SECONDS = 1.0
"""A client that took no longer for an answer gets GROWTH times as many bytes."""
GROWTH = 4
LEAST_BYTES_PER_SECOND = 64 * 1024
"""What a client has to read while others wait for memory,"""
PATIENCE_SECONDS = 5.0
"""Longest time in which it may read nothing."""
JUDGED_SECONDS = 1.0
"""Longest time between two looks that counts: a connection is looked at only while others wait."""


class ReadingSpeed:
    """The reading speed of one connection. Times are of Clock.monotonic()."""

    __slots__ = ("_judged_at", "_patience", "_taken_bytes", "most_bytes")

    def __init__(self) -> None:
        self.most_bytes = FIRST_BYTES
        """Most bytes of records of the next answer, but for a first batch that is larger."""
        self._patience = PATIENCE_SECONDS
        self._judged_at = 0.0
        self._taken_bytes: int | None = None

    def read(self, size_bytes: int, seconds: float) -> None:
        """An answer of this size was read in so long."""
        if seconds > QUICK_SECONDS:
            self.most_bytes = max(LEAST_BYTES, int(size_bytes / seconds * ANSWER_SECONDS))
        elif size_bytes * GROWTH > self.most_bytes:
            self.most_bytes = size_bytes * GROWTH

    def begin(self, now: float) -> None:
        """There are replies to read, after there were none."""
        self._patience, self._judged_at, self._taken_bytes = PATIENCE_SECONDS, now, None

    def is_too_slow(self, now: float, taken_bytes: int) -> bool:
        """Look at a connection with unread replies while others wait. `taken_bytes`: read since it began."""
        waited = min(now - self._judged_at, JUDGED_SECONDS)
        gained = 0.0 if self._taken_bytes is None else (taken_bytes - self._taken_bytes) / LEAST_BYTES_PER_SECOND
        self._judged_at, self._taken_bytes = now, taken_bytes
        self._patience = min(PATIENCE_SECONDS, self._patience - waited + gained)
        return self._patience < 0


SMALL_BYTES = 64 * 1024
"""Records of a connection up to here are never made fewer, and use the reserve."""
RESERVE_PART = 4
"""A quarter of the memory is left to what are not large records."""
FIRST_PART = 16
"""A first batch reserves no more than a sixteenth of the memory."""
PARTS = (4, 4, 2)
"""Multiples: so many times what would be left may go to one principal, one of its addresses, one connection of it."""


class ReplyMemory:
    """Bytes of replies, for one event loop; not thread-safe."""

    def __init__(self, total_bytes: int) -> None:
        reserve = total_bytes // RESERVE_PART
        self._total = total_bytes
        self.budget = MemoryBudget(total_bytes, small_bytes=SMALL_BYTES, small_reserve=reserve)
        self.first_bytes = min(FIRST_BYTES, total_bytes // FIRST_PART)
        """Most bytes that a first batch reserves."""
        self._held: Counter[tuple[str, ...]] = Counter()
        """Large records by principal, by principal and address, and by all three."""

    @property
    def in_use_bytes(self) -> int:
        return self.budget.in_use_bytes

    @property
    def waiting(self) -> int:
        """Number of replies that wait for room."""
        return self.budget.waiting

    @property
    def is_full(self) -> bool:
        """Whether there is no room."""
        return self.waiting > 0 or self.in_use_bytes >= self._total

    def room_of(self, client: Client) -> int:
        """Return how many bytes of large records the client may get besides those that it has."""
        room = self.budget.free_for_large
        for depth, part in enumerate(PARTS[: len(client)], start=1):
            if client[depth - 1]:  # clients without a principal are not one client
                room = max(0, (part * room - self._held[tuple(client[:depth])]) // (part + 1))
        return room

    def count(self, client: Client, change: int) -> None:
        """The client has `change` more bytes of large records."""
        for depth in range(1, len(client) + 1):
            name = tuple(client[:depth])
            self._held[name] += change
            if not self._held[name]:
                del self._held[name]


class ConnectionReplies:
    """One connection's part of the memory: what handlers reserve with, and what its replies take."""

    __slots__ = ("_counted_as", "_has_large", "_memory", "_record_bytes", "client", "speed")

    def __init__(self, memory: ReplyMemory) -> None:
        self._memory = memory
        self.client: Client = ("", "", "")
        """Principal, address and connection, once they are known."""
        self.speed = ReadingSpeed()
        self._record_bytes = 0
        self._has_large = False
        """Whether its records are large ones: until all of them were sent."""
        self._counted_as: Client = ()

    async def reserve(self, size: int, first: int | None = None) -> tuple[int, int]:
        """Return (bytes reserved, bytes of records that may be read): of `size` or fewer. `first`: most bytes of the
        first batch, which is read in any case. None: no fewer than `size`. A size of 0 waits for its turn only.
        """
        granted = size
        if first is not None:
            memory = self._memory
            first = min(first, memory.first_bytes)
            granted = min(size, max(SMALL_BYTES, min(self.speed.most_bytes, memory.room_of(self.client))))
            if granted > SMALL_BYTES and not memory.budget.has_room(max(granted, first)):
                granted = SMALL_BYTES
        reserved = max(granted, first or 0)
        await self._wait(reserved, is_large=reserved > 0 and not self._fits_small(reserved))
        return reserved, granted

    def release(self, size: int) -> None:
        """Release bytes that were reserved, or charged for records."""
        self._change_records(-size)

    def charge(self, size: int) -> None:
        """Count bytes of records that are in use in any case."""
        self._change_records(size)

    def charge_other(self, size: int) -> None:
        """Count the bytes of a reply without records, which are in use in any case."""
        self._memory.budget.charge(size, of=0)

    def release_other(self, size: int) -> None:
        """Release bytes of a reply without records."""
        self._memory.budget.release(size, of=0)

    def _fits_small(self, size: int) -> bool:
        return not self._has_large and self._record_bytes + size <= SMALL_BYTES

    async def _wait(self, size: int, *, is_large: bool) -> None:
        """Return when `size` bytes are reserved."""
        budget, of = self._memory.budget, SMALL_BYTES + 1 if is_large else 0
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        has_turn = False

        def granted() -> None:
            nonlocal has_turn
            has_turn = True
            if not turn.done():
                turn.set_result(None)

        if not budget.reserve(size, granted, self.client, of):
            try:
                await turn
            except asyncio.CancelledError:
                if has_turn:
                    budget.release(size, of=of)
                else:
                    budget.withdraw(granted)
                raise
        budget.charge(-size, of=of)
        self._change_records(size, becomes_large=is_large)

    def _change_records(self, change: int, *, becomes_large: bool = False) -> None:
        """Count them where all records of the connection are counted."""
        before, had_large = self._record_bytes, self._has_large
        after = before + change
        self._has_large = after > 0 and (had_large or becomes_large or after > SMALL_BYTES)
        self._record_bytes = after
        budget = self._memory.budget
        if not had_large and not self._has_large:  # the usual case
            budget.release(-change, of=0)
            return
        if not had_large:
            self._counted_as = self.client
        large_before, large_after = before if had_large else 0, after if self._has_large else 0
        if large_before != large_after:
            self._memory.count(self._counted_as, large_after - large_before)
        budget.charge(large_after, of=SMALL_BYTES + 1)
        budget.charge(after - large_after, of=0)
        budget.release(large_before, of=SMALL_BYTES + 1)
        budget.release(before - large_before, of=0)
