"""Sends replies to one connection without copying record bytes.

Place: last step of every request. asyncio joins the buffers it gets and copies what the kernel does not accept at
once. This writer therefore passes buffers to the kernel by gather writes, and only if the kernel accepts no more, it
gives one small buffer to the transport, which signals when there is room again. For a fast reader this costs as much
as a join (load/benchmarks/codec.py); for a slow one it avoids copies of its whole response.
Invariant: bytes are sent in the order of `add`; nothing is written directly while the transport holds bytes, and on an
encrypted connection never: the socket below it would send them as they are.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct(">i")
_QUEUED = struct.Struct("i")
"""What the kernel has of a socket's bytes, in the machine's order."""
_MAX_BUFFERS = 512
"""Buffers per gather write; Linux allows at most 1024."""
_PIECE_BYTES = 64 * 1024
_PINNED_TIMES = 4


class ReplyWriter:
    """The write side of one connection. The owner forwards pause_writing and resume_writing."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._socket: Any = None if self._is_encrypted else transport.get_extra_info("socket")
        self._queue: list[bytes | memoryview] = []
        self.pending_bytes = 0
        """Bytes that neither the kernel nor the transport has."""
        self._added_bytes = 0
        self._blocked = False

    def begin(self) -> None:
        """Let the transport say when it holds bytes. It may say so at once: TLS has sent messages of its handshake."""
        # asyncio's TLS transport pauses at its limit, not above it
        self._transport.set_write_buffer_limits(high=1 if self._is_encrypted else 0, low=0)

    @property
    def blocked(self) -> bool:
        """Whether the client reads too slowly for the bytes sent so far."""
        return self._blocked

    @property
    def empty(self) -> bool:
        """Whether the kernel has accepted everything."""
        return not self._queue and not self._blocked

    def add(self, buffers: Sequence[bytes | memoryview]) -> int:
        """Queue one response frame with its length; returns its bytes on the wire."""
        size = sum(map(len, buffers))
        self._queue.append(_LENGTH.pack(size))
        self._queue += buffers
        size += _LENGTH.size
        self.pending_bytes += size
        self._added_bytes += size
        return size

    def taken_bytes(self) -> int:
        """Return how many bytes the client's machine has taken since the connection began, about: the kernel reports a
        client that reads slowly only after each third of its buffer, which may be a megabyte."""
        socket = self._transport.get_extra_info("socket")
        try:
            (unsent,) = _QUEUED.unpack(fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(_QUEUED.size)))
        except OSError:  # the connection has ended
            unsent = 0
        return self._added_bytes - self.pending_bytes - self._transport.get_write_buffer_size() - int(unsent)

    def flush(self) -> None:
        """Send as much as the kernel accepts. After a socket error the connection is aborted."""
        while self._queue and not self._blocked and not self._transport.is_closing():
            if self._is_encrypted:
                self._hand_over_pieces()
            elif self._gather_write():
                self._hand_over_piece()

    def pause(self) -> None:
        """The transport holds bytes that the kernel did not accept."""
        self._blocked = True
        self._unpin()

    def resume(self) -> None:
        """The transport holds no bytes any more: flush() may continue."""
        self._blocked = False

    def clear(self) -> None:
        """Drop the queue: the connection is closed."""
        self._queue.clear()
        self.pending_bytes = 0

    def _unpin(self) -> None:
        """Copy what waits for a slow client, if it keeps much more in memory: views of file chunks do."""
        views = (buffer for buffer in self._queue if isinstance(buffer, memoryview))
        held = {id(view.obj): memoryview(view.obj).nbytes for view in views}
        if sum(held.values()) > _PINNED_TIMES * self.pending_bytes:
            self._queue = [b"".join(self._queue)]

    def _gather_write(self) -> bool:
        """One write; True if the kernel accepts no more for now."""
        batch = self._queue[:_MAX_BUFFERS]
        try:
            written = os.writev(self._socket.fileno(), batch)
        except BlockingIOError:
            return True
        except OSError:
            self._transport.abort()
            return False
        self.pending_bytes -= written
        if written == sum(map(len, batch)):  # the usual case, with dozens of small replies
            del self._queue[: len(batch)]
            return False
        whole = 0
        while whole < len(batch) and written >= len(batch[whole]):
            written -= len(batch[whole])
            whole += 1
        del self._queue[:whole]
        self._queue[0] = memoryview(self._queue[0])[written:]
        return True

    def _hand_over_pieces(self) -> None:
        """Small buffers together: each write is at least one TLS record."""
        count = size = 0
        for buffer in self._queue:
            if count and size + len(buffer) > _PIECE_BYTES:
                break
            count += 1
            size += len(buffer)
        if size > _PIECE_BYTES:
            self._hand_over_piece()
            return
        data = b"".join(self._queue[:count])
        del self._queue[:count]
        self.pending_bytes -= size
        self._transport.write(data)

    def _hand_over_piece(self) -> None:
        first = memoryview(self._queue[0])
        if len(first) > _PIECE_BYTES:
            self._queue[0] = first[_PIECE_BYTES:]
        else:
            del self._queue[0]
        self.pending_bytes -= min(len(first), _PIECE_BYTES)
        self._transport.write(first[:_PIECE_BYTES])
