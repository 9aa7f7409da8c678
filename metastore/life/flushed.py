"""Decides what is noted of a server's position: only what an ordinary crash of Postgres cannot take back.

Place: pure policy under keeper.py, which keeps what is noted in its memory, in the bucket and in a life's record.
Invariant: a reading shows WAL that Postgres has inserted, and rows of it, before they are flushed; a crash loses what
is not flushed, and the server has less afterwards. So a reading is noted once a check sees that the server flushed
all WAL that the reading shows. Compared is the inserted WAL, of which a server that recovered has at least as much.
"""

from __future__ import annotations

from headrace.metastore.api.life import ServerLife
from headrace.metastore.life.bucket import Position
from headrace.metastore.life.verdict import went_back


class FlushedPosition:
    """The newest position that was flushed, and a later reading that waits for it."""

    def __init__(self) -> None:
        self.newest: Position | None = None
        """None until one is known."""
        self._waiting: Position | None = None

    def start_from(self, noted: Position | None) -> None:
        """Continue from what another process noted."""
        self.newest, self._waiting = noted, None

    def take(self, found: ServerLife) -> None:
        """Note what is flushed by now of this reading, or of the one that waits."""
        reading, waiting = Position.of(found), self._waiting
        if waiting is None or waiting.life != found.life or went_back(found, waiting):
            self._waiting = waiting = reading  # after a crash, what waited may be lost: it is never noted
        if waiting.wal_bytes <= found.flushed_bytes:
            self.newest, self._waiting = waiting, reading
        if reading.wal_bytes <= found.flushed_bytes:
            self.newest = reading
