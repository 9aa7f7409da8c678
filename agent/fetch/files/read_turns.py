"""Limits how many ranges replays read at a time: fewer while this agent uploads what producers wait for.

Place: around each read of a historical range, and each range that is read ahead (read.py, read_ahead.py).
Invariant: at most `most` reads are in progress, and none begins while `beside_uploads` are and flush files are being
uploaded, or were within a second. So a PUT shares connections and bandwidth with few of them, and replays never stop.
Reads begin in the order in which they asked. A read that is in progress when an upload begins is not stopped: it is
short.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType

READS_MAX = 16
"""A quarter of s3.max.connections."""
READS_BESIDE_UPLOADS = 4


class ReadTurns:
    """`async with turns:` around a read. `uploading` says whether flush files are being uploaded."""

    def __init__(
        self, uploading: Callable[[], bool], *, most: int = READS_MAX, beside_uploads: int = READS_BESIDE_UPLOADS
    ) -> None:
        self._uploading = uploading
        self._most = most
        self._beside_uploads = beside_uploads
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.running = 0
        """Reads in progress."""

    async def __aenter__(self) -> None:
        if not self._waiting and self.running < self._limit():
            self.running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it got its turn, and was cancelled before it ran
                self._end()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        """A read ended: give its turn on. While any read waits, one is in progress, so this is called again."""
        self.running -= 1
        while self._waiting and self.running < self._limit():
            turn = self._waiting.popleft()
            if not turn.done():
                self.running += 1
                turn.set_result(None)

    def _limit(self) -> int:
        return self._beside_uploads if self._uploading() else self._most
