"""Sends replies to one connection without copying record bytes.

Place: last step of every request. asyncio joins what it is given and copies what the kernel does not
take at once; so buffers go to the kernel by gather writes, and only when it takes no more is one
small piece given to the transport, which tells when there is room again. For a fast reader this costs
what a join costs (load/bench_codec.py); for a slow one it saves copies of its whole response.
Invariant: bytes leave in the order of `send`; nothing is written directly while the transport holds
bytes of its own. If the process dies here the client sees a closed connection and asks again.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Sequence

_LENGTH = struct.Struct(">i")
_MAX_BUFFERS = 512
"""Per gather write; Linux takes 1024 at most."""
_PIECE_BYTES = 64 * 1024


class ReplyWriter:
    """The write side of one connection. The owner forwards pause_writing and resume_writing."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._socket = transport.get_extra_info("socket")
        self._queue: list[bytes | memoryview] = []
        self._blocked = False
        transport.set_write_buffer_limits(high=0)

    @property
    def blocked(self) -> bool:
        """Whether the client reads too slowly for what was sent so far."""
        return self._blocked

    @property
    def empty(self) -> bool:
        """Whether everything is with the kernel."""
        return not self._queue and not self._blocked

    def add(self, buffers: Sequence[bytes | memoryview]) -> int:
        """Queue one response frame behind its length; returns its bytes on the wire."""
        size = sum(map(len, buffers))
        self._queue.append(_LENGTH.pack(size))
        self._queue += buffers
        return size + _LENGTH.size

    def flush(self) -> None:
        """Send as much as the kernel takes. After an error of the socket the connection is aborted."""
        while self._queue and not self._blocked and not self._transport.is_closing():
            if self._gather_write():
                self._hand_over_piece()

    def pause(self) -> None:
        """The transport holds bytes that the kernel did not take."""
        self._blocked = True

    def resume(self) -> None:
        """The transport holds nothing any more: flush() may go on."""
        self._blocked = False

    def clear(self) -> None:
        """Drop what is queued: the connection is gone."""
        self._queue.clear()

    def _gather_write(self) -> bool:
        """One write; True when the kernel takes no more for now."""
        batch = self._queue[:_MAX_BUFFERS]
        try:
            written = os.writev(self._socket.fileno(), batch)
        except BlockingIOError:
            return True
        except OSError:
            self._transport.abort()
            return False
        if written == sum(map(len, batch)):  # as nearly always, with dozens of small replies
            del self._queue[: len(batch)]
            return False
        whole = 0
        while whole < len(batch) and written >= len(batch[whole]):
            written -= len(batch[whole])
            whole += 1
        del self._queue[:whole]
        self._queue[0] = memoryview(self._queue[0])[written:]
        return True

    def _hand_over_piece(self) -> None:
        first = memoryview(self._queue[0])
        if len(first) > _PIECE_BYTES:
            self._queue[0] = first[_PIECE_BYTES:]
        else:
            del self._queue[0]
        self._transport.write(first[:_PIECE_BYTES])
