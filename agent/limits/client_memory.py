"""A mapping for what clients make an agent remember between their requests. It counts bytes.

Place: under each container that is kept between requests and has keys or values of clients: ACL decisions, answers of
Metadata, clients with quotas, names of producers, positions of groups, zones in client ids. Groups and fetch sessions
count by client address (group_memory.py, sessions.py), and segment files by themselves.
Invariant: keys and values use at most the limit of their part (config/memory_budget.py), and none uses more than
`largest_bytes`: a key that is free for a client to choose can be of any length. headrace_memory_bytes shows each part.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

ENTRY_BYTES = 256
"""What an entry uses besides its texts and bytes, about: places in dictionaries, a tuple, some numbers."""
_SHARE_OF_ONE = 16


def text_bytes(*texts: str | None) -> int:
    """The memory that these strings use. A character takes up to four bytes."""
    return sum(sys.getsizeof(text) for text in texts if text is not None)


class ClientMemory(Generic[K, V]):
    """A mapping with a limit in bytes, for one event loop. `size_of` an entry is always the same."""

    def __init__(
        self, limit_bytes: int, size_of: Callable[[K, V], int], largest_bytes: int | None = None, count_max: int = 2**31
    ) -> None:
        """`largest_bytes` of one entry; None: a sixteenth of the limit."""
        self._limit = limit_bytes
        self._size_of = size_of
        self._largest = limit_bytes // _SHARE_OF_ONE if largest_bytes is None else largest_bytes
        self._count_max = count_max
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.get: Callable[[K], V | None] = self._entries.get
        """The value; None if there is none. The dictionary's own, because decisions of ACLs are asked often."""
        self.in_use_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def items(self) -> list[tuple[K, V]]:
        """All entries, the oldest first."""
        return list(self._entries.items())

    def put(self, key: K, value: V) -> bool:
        """Remember it, and forget the oldest entries if there is no room. False: it is too large, and not kept."""
        self.pop(key)
        size = self._size(key, value)
        if size > self._largest:
            return False
        while self._entries and not self._fits(size):
            self._forget(*self._entries.popitem(last=False))
        self._keep(key, value, size)
        return True

    def add(self, key: K, value: V) -> bool:
        """Remember it if there is room: nothing else is forgotten. False: it is not kept."""
        self.pop(key)
        size = self._size(key, value)
        if size > self._largest or not self._fits(size):
            return False
        self._keep(key, value, size)
        return True

    def has_room(self, key: K, value: V | None = None) -> bool:
        """Return whether `add` would keep it; for memories in which the value has no part in the size."""
        size = self._size(key, value)  # type: ignore[arg-type]
        return size <= self._largest and self._fits(size)

    def pop(self, key: K) -> V | None:
        """Forget it; the value that it had."""
        value = self._entries.pop(key, None)
        if value is not None:
            self._forget(key, value)
        return value

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()
        self.in_use_bytes = 0

    def _size(self, key: K, value: V) -> int:
        return ENTRY_BYTES + self._size_of(key, value)

    def _fits(self, size: int) -> bool:
        return self.in_use_bytes + size <= self._limit and len(self._entries) < self._count_max

    def _keep(self, key: K, value: V, size: int) -> None:
        self._entries[key] = value
        self.in_use_bytes += size

    def _forget(self, key: K, value: V) -> None:
        self.in_use_bytes -= self._size(key, value)
