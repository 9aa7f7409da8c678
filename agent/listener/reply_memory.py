"""Limits the memory of replies that were made and not yet accepted by the kernel, and each client's part of it.

Place: a Fetch reserves the size of its records before it reads them, a request with a long answer (Metadata,
descriptions, lists) waits until there is room; the listener charges what every reply really takes, and releases what
it sent. While there is no room, it reads no further request of a connection with replies that are not sent.
    records    of Fetch and ShareFetch: large ones may use what is not the reserve
    others     all other replies, and records of up to SMALL_BYTES for each connection: a quarter is their reserve, so
               none of them waits for large records
Records that do not fit are made fewer first: `reserve` grants less than the asked bytes, but always a batch. What is
granted leaves room to others: a connection gets at most PARTS of what its address has left, an address of what its
principal has left, a principal of what is free. So clients that do not read leave less and less to themselves,
but always something to the next one. A connection that has read little lately gets no more than it reads in
seconds (reading_speed.py).
Invariant: reservations are granted in turns (memory.py), and only while they fit; records larger than the total are
made alone. What is charged may exceed the total by the replies that were being made at that moment.
A client that reads its replies too slowly while others wait is closed (connection.py), so that none waits without end.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from headrace.agent.listener.memory import Client, MemoryBudget
from headrace.agent.listener.reading_speed import FIRST_BYTES, ReadingSpeed

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
        if self._has_large and not had_large:
            self._counted_as = self.client
        large_before, large_after = before if had_large else 0, after if self._has_large else 0
        if large_before != large_after:
            self._memory.count(self._counted_as, large_after - large_before)
        budget = self._memory.budget
        budget.charge(large_after, of=SMALL_BYTES + 1)
        budget.charge(after - large_after, of=0)
        budget.release(large_before, of=SMALL_BYTES + 1)
        budget.release(before - large_before, of=0)
