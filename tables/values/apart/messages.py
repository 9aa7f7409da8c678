"""What the worker exchanges with the process that opens values.

Place: between process.py in the worker and child.py, which writes the number of a row before it opens it, into a
file that both have in memory.
Invariant of the number: the number is that of the row that is being opened, CONVERTING while many values become
columns, or IDLE.

    frame   three lengths of 8 bytes, then: a message (MessagePack), an Arrow schema, an Arrow stream of rows
    worker  -> OpeningRequest, the table's columns, raw rows
    process -> OpeningAnswer, the columns that the values ask for, rows

Invariant: the worker only decodes data: nothing that a client's value makes of the process can run code in the
worker.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa

PROGRESS = struct.Struct("q")
CONVERTING, IDLE = -1, -2
OUT_OF_MEMORY = 75
"""Exit status."""


class EndedError(Exception):
    """The process ended while it had this row open. `is_certain`: because of it; False: perhaps because of others."""

    def __init__(self, row: int, reason: str, *, is_certain: bool) -> None:
        super().__init__(reason)
        self.row, self.reason, self.is_certain = row, reason, is_certain


_LENGTHS = struct.Struct(">QQQ")
FRAME_BYTES_MAX = 4 * 1024**3
_AT_ONCE = 1024 * 1024


class Refused(NamedTuple):
    """A record that is not opened, and why."""

    partition: int
    offset: int
    reason: str


class OpeningRequest(msgspec.Struct, frozen=True):
    """Open the rows, or say why they do not fit."""

    value_format: str
    value_schema: str
    registry_url: str
    tolerance: str
    record_seconds: float
    """CPU seconds for one record; SECONDS_PER_BYTE of child.py are on top."""
    chunk_seconds: float
    """CPU seconds after which the rest of the rows is for the next chunk."""
    wants_reasons: bool = False
    refused: tuple[Refused, ...] = ()
    rows_max: int | None = None
    """The rows behind so many are for the next chunk."""
    batch_rows: int | None = None
    """Records that become columns together; None: as they come."""


class OpeningAnswer(msgspec.Struct, frozen=True):
    """What became of the rows. `dead`: partition, start, end; `cuts`: partition, offset, reason."""

    dead: tuple[tuple[int, int, int], ...] = ()
    cuts: tuple[tuple[int, int, str], ...] = ()
    reasons: tuple[str, ...] = ()
    error: str = ""
    """The name of an error's class; `text` has what it says."""
    text: str = ""


class OpeningFrame(NamedTuple):
    """A message with its columns and rows."""

    message: bytes
    schema: pa.Schema
    rows: pa.Table


def send(peer: socket.socket, message: msgspec.Struct, schema: pa.Schema, rows: pa.Table) -> None:
    """Send one frame. OSError: the other side has ended."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    parts = [msgspec.msgpack.encode(message), schema.serialize().to_pybytes(), sink.getvalue()]
    peer.sendall(_LENGTHS.pack(*map(len, parts)))
    for part in parts:
        peer.sendall(memoryview(part))


class Readable(Protocol):
    """What frames are read from."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Read some bytes; 0: the other side has ended."""


def receive(peer: Readable) -> OpeningFrame:
    """Return the next frame. EOFError, OSError: the other side has ended."""
    lengths = _LENGTHS.unpack(_exactly(peer, _LENGTHS.size))
    if sum(lengths) > FRAME_BYTES_MAX:
        raise EOFError(f"a frame of {sum(lengths)} bytes")
    message, schema, rows = (_exactly(peer, length) for length in lengths)
    table = pa.ipc.open_stream(pa.py_buffer(rows)).read_all()
    return OpeningFrame(bytes(message), pa.ipc.read_schema(pa.py_buffer(schema)), table)


def _exactly(peer: Readable, size: int) -> bytearray:
    found = bytearray(size)
    view, at = memoryview(found), 0
    while at < size:
        count = peer.recv_into(view[at : at + _AT_ONCE])
        if not count:
            raise EOFError("the other side has ended")
        at += count
    return found
