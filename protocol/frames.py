"""Splits a connection's bytes into request frames, and parses a frame's header.

Place: first step of every request: socket -> frame -> Request.
Invariant: each frame has separate memory of exactly its length, written once and never reused, so
that code with a view into it may keep the view. Memory is allocated only for an announced length within the limit,
and for a large frame the socket is read directly into it. A large frame's memory is not filled in advance, so it
becomes resident only as its bytes arrive; that of a very large one goes back to the system when it is freed.
Source: Kafka protocol guide (int32 length, request header v1 and v2).
"""

from __future__ import annotations

import mmap
import struct
from typing import NamedTuple

import numpy

from headrace.protocol import wire
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.storage.errors import InvalidError

MIN_FRAME_BYTES = 8
"""API key, version and correlation id."""
TLS_HANDSHAKE = 0x1603
"""The first two bytes of a TLS connection: a handshake record, version 3."""
DIRECT_BYTES = 16 * 1024
"""Number of missing bytes from which on a frame is read directly into its memory; below, one read gets
several frames.
"""

_LAZY_BYTES = 128 * 1024
"""Size from which on malloc gets pages from the kernel that use no memory until they are written."""
_MAPPED_BYTES = 4 * 1024 * 1024
"""Size from which on a frame has a separate mapping. The allocator keeps what is freed (cli/process/heap.py), and
the next very large frame seldom fits into the place of the last one. More than any client's default
`max.request.size`."""
_SMALL_PAGES_BYTES = 2 * 1024 * 1024
"""The first part of a mapped frame, in small pages, for a frame of which little arrives. The rest is in huge pages:
0.02 ms of CPU per MiB, where small ones cost 0.3 ms."""
_LENGTH_BYTES = 4
_tuple = tuple.__new__
"""Makes a NamedTuple from a tuple, in a third of the time of calling its class."""
_HEAD = struct.Struct(">ih")
_FIXED_HEADER = struct.Struct(">hhi")


class FrameHead(NamedTuple):
    """What is known before a frame is allocated; `size` in bytes, without the length field itself."""

    size: int
    api_key: int


class RequestHeader(NamedTuple):
    """`body_start` is a position in the frame. For unknown APIs it is correct only without tagged header fields."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_start: int


TOKEN_HEADER = RequestHeader(ApiKey.SASL_AUTHENTICATE, 0, 0, None, 0)
"""The header of a frame that is a token."""


class FrameReader:
    """One connection's state between two reads: nothing, part of a head, a head, or a partly filled frame."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._head_bytes = bytearray()
        self.frame: memoryview | None = None
        """The open frame: allocated, and not yet taken."""
        self._filled = 0

    def allow(self, max_frame_bytes: int) -> None:
        """The largest frame that the next heads may declare."""
        self._max_frame_bytes = max_frame_bytes

    @property
    def filled_bytes(self) -> int:
        """Bytes of the open frame that have arrived."""
        return self._filled if self.frame is not None else 0

    @property
    def size(self) -> int:
        """Bytes of the open frame; 0 if none is open."""
        return 0 if self.frame is None else len(self.frame)

    def read_head(self, data: memoryview) -> tuple[FrameHead | None, memoryview]:
        """(the next frame's head, or None if more bytes are needed; the rest of `data`).

        InvalidError for a length outside the limits.
        """
        if not self._head_bytes and len(data) >= _HEAD.size:
            head = _tuple(FrameHead, _HEAD.unpack_from(data))
            data = data[_LENGTH_BYTES:]
        else:
            missing = _HEAD.size - len(self._head_bytes)
            self._head_bytes += data[:missing]
            data = data[missing:]
            if len(self._head_bytes) < _HEAD.size:
                return None, data
            head = _tuple(FrameHead, _HEAD.unpack(self._head_bytes))
        if not MIN_FRAME_BYTES <= head.size <= self._max_frame_bytes:
            if head.size >> 16 == TLS_HANDSHAKE:
                raise InvalidError("the client speaks TLS, and this listener does not: use a listener with SSL")
            raise InvalidError(f"frame outside the limits: size={head.size} max={self._max_frame_bytes}")
        return head, data

    def read_token_head(self, data: memoryview) -> tuple[FrameHead | None, memoryview]:
        """The same as `read_head`, of a frame that is a token of SASL: any bytes, and as large as its message would
        be.
        """
        missing = _LENGTH_BYTES - len(self._head_bytes)
        self._head_bytes += data[:missing]
        if len(self._head_bytes) < _LENGTH_BYTES:
            return None, data[missing:]
        size = int.from_bytes(self._head_bytes, "big", signed=True)
        if not 0 <= size <= self._max_frame_bytes:
            raise InvalidError(f"token outside the limits: size={size} max={self._max_frame_bytes}")
        return FrameHead(size, ApiKey.SASL_AUTHENTICATE), data[missing:]

    def open(self, head: FrameHead, data: memoryview) -> memoryview:
        """Allocate the frame of the last head, and fill it from `data`; returns the rest of `data`."""
        if not self._head_bytes and len(data) >= head.size:
            self.frame = memoryview(bytes(data[: head.size]))
            self._filled = head.size
            return data[head.size :]
        self.frame = _memory(head.size)
        key_bytes = self._head_bytes[_LENGTH_BYTES:]
        self.frame[: len(key_bytes)] = key_bytes
        self._filled = len(key_bytes)
        self._head_bytes.clear()
        return self.fill(data)

    def vacant(self) -> memoryview | None:
        """The open frame's missing part, if it is large enough to be read into directly."""
        if self.frame is None or len(self.frame) - self._filled < DIRECT_BYTES:
            return None
        return self.frame[self._filled :]

    def filled(self, count: int) -> None:
        """`count` bytes were written into `vacant()`."""
        self._filled += count

    def fill(self, data: memoryview) -> memoryview:
        """Copy the bytes that the open frame still needs; returns the rest of `data`."""
        assert self.frame is not None, "open() comes before fill()"
        count = min(len(self.frame) - self._filled, len(data))
        self.frame[self._filled : self._filled + count] = data[:count]
        self._filled += count
        return data[count:]

    def take(self) -> memoryview | None:
        """The complete frame, read-only; None while bytes are missing."""
        frame = self.frame
        if frame is None or self._filled < len(frame):
            return None
        self.frame = None
        return frame.toreadonly()


def _memory(size: int) -> memoryview:
    if size < _LAZY_BYTES:
        return memoryview(bytearray(size))
    if size < _MAPPED_BYTES:
        return numpy.empty(size, numpy.uint8).data
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE, _SMALL_PAGES_BYTES)
    return memoryview(memory)


def read_request_header(frame: memoryview) -> RequestHeader:
    """The header at the start of `frame`; InvalidError if it is malformed."""
    try:
        api_key, api_version, correlation_id = _FIXED_HEADER.unpack_from(frame, 0)
        client_id, position = wire.read_string_or_null(frame, _FIXED_HEADER.size, False)
        api = APIS.get(api_key)
        if api is not None and api_version >= api.first_flexible:
            _, position = wire.read_tags(frame, position)
    except wire.MALFORMED as error:
        raise InvalidError(f"malformed request header: {error}") from error
    return _tuple(RequestHeader, (api_key, api_version, correlation_id, client_id, position))
