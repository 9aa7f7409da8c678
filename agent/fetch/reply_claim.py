"""The memory that one Fetch reserves for its records before it reads them.

Place: between the long poll, which knows how much there is, and the reads.
Invariant: what was reserved continues with the response, or is given back.
"""

from __future__ import annotations

from headrace.protocol.request import ReplyReservations


class ReplyClaim:
    """The memory that one request's reply has reserved."""

    def __init__(self, replies: ReplyReservations) -> None:
        self._replies = replies
        self.size_bytes = 0
        """Reserved so far."""

    async def claim(self, size: int, first: int, max_bytes: int) -> int:
        """Wait until `size` bytes are reserved, or fewer if the client cannot have them. Return how many bytes of
        records may be read, of `max_bytes`, besides a first batch, which has `first` bytes at most.
        """
        if not size and not first:
            return max_bytes
        reserved, granted = await self._replies.reserve(size, first)
        self.size_bytes += reserved
        return max_bytes if granted >= size else granted

    def give_up(self) -> None:
        """There is no response."""
        self._replies.release(self.size_bytes)
        self.size_bytes = 0
