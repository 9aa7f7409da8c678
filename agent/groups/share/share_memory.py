"""Limits what an agent remembers of the records of its share groups: ranges in flight, and members' connections.

Place: under owner.py, which measures a group's ranges after each turn, and connections.py.
Invariant: one address has room only while it uses less than half of the limit, and any only while all use less than it.
Without room a group still acquires and acknowledges, but so that its partitions get no more ranges than a few: a range
that is there is worked off, so no client keeps another's members from their records, and no acknowledgement that makes
ranges fewer is refused. The ranges of a group are its first member's; one turn may exceed the limit by what it asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from headrace.config.memory_budget import SHARE_RECORDS_BYTES

IN_FLIGHT_BYTES = 176
"""A range of records in flight, about, and its part of the state that is stored."""


class ShareMemory:
    """Bytes by client address. For one event loop."""

    def __init__(
        self, limit_bytes: int = SHARE_RECORDS_BYTES, on_limit: Callable[[str], None] = lambda limit: None
    ) -> None:
        """`on_limit` is called with the limit's name each time there is no room."""
        self._limit, self._on_limit = limit_bytes, on_limit
        self._by_address: Counter[str] = Counter()
        self._groups: dict[str, tuple[str, int]] = {}
        """Group id -> the address that it counts for, and its bytes."""
        self.in_use_bytes = 0

    def has_room(self, address: str, more: int = 0) -> bool:
        """Return whether a client of the address may use so many bytes more; it is counted if not."""
        own = self._by_address[address] + more
        has_room = self.in_use_bytes + more <= self._limit and 2 * own <= self._limit
        if not has_room:
            self._on_limit("share.records")
        return has_room

    def add(self, address: str, more: int) -> None:
        """Count what a client of the address uses; below 0: uses no more."""
        self.in_use_bytes += more
        self._by_address[address] += more
        if not self._by_address[address]:
            del self._by_address[address]

    def measured(self, group_id: str, address: str, ranges: int) -> None:
        """Count the ranges of a group instead of those that it had; 0 if it was released."""
        self.add(*_negative(self._groups.pop(group_id, (address, 0))))
        if ranges:
            self._groups[group_id] = address, IN_FLIGHT_BYTES * ranges
            self.add(*self._groups[group_id])


def _negative(counted: tuple[str, int]) -> tuple[str, int]:
    return counted[0], -counted[1]
