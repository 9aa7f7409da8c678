"""Answers of the zone cache that another machine altered or made up: nothing of them is used."""

from __future__ import annotations

import asyncio
import random
import struct
import uuid
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from headrace.agent.peers import zone_cache_wire as wire
from headrace.agent.peers.channel import ZONE_CACHE
from headrace.agent.peers.connection import PeerConnection, open_connection
from headrace.storage.errors import CorruptError, HeadraceError, UnavailableError
from headrace.storage.segment.file_range import FileRange

pytestmark = pytest.mark.requirement("X7")
SECRET, MAC = b"s" * 32, b"m" * 32
FILE = uuid.UUID(int=5)
DATA = random.Random(5).randbytes(3_000)
RANGES = [FileRange(FILE, start, end, len(DATA)) for start, end in pairwise((0, 1_000, 1_001, 3_000))]


def _answer() -> bytearray:
    parts = [memoryview(DATA)[wanted.start : wanted.end] for wanted in RANGES]
    return bytearray(b"".join(wire.encode_answer(7, SECRET, MAC, parts)))


def test_no_altered_bit_passes() -> None:
    """Every byte of the head, and one in twenty of the data: it is refused, or its range is."""
    whole = _answer()
    assert wire.decode_answer(memoryview(whole), SECRET, MAC, RANGES) == [
        DATA[wanted.start : wanted.end] for wanted in RANGES
    ]
    head = len(whole) - len(DATA)
    for at in [*range(4, head), *range(head, len(whole), 20)]:
        altered = bytearray(whole)
        altered[at] ^= 1
        try:
            found = wire.decode_answer(memoryview(altered), SECRET, MAC, RANGES)
        except HeadraceError:
            assert at < head
            continue
        assert at >= head
        assert sum(isinstance(each, CorruptError) for each in found) == 1


def test_who_can_compute_a_checksum_cannot_make_an_answer() -> None:
    """The digests of the altered bytes are right; the secret is not known."""
    parts = [memoryview(bytes(wanted.end - wanted.start)) for wanted in RANGES]
    forged = b"".join(wire.encode_answer(7, zlib.crc32(DATA).to_bytes(32, "big"), MAC, parts))
    with pytest.raises(CorruptError):
        wire.decode_answer(memoryview(forged), SECRET, MAC, RANGES)
    with pytest.raises(CorruptError):
        wire.decode_answer(memoryview(_answer()), SECRET, b"o" * 32, RANGES)


@asynccontextmanager
async def _peer(reply: Callable[[asyncio.StreamWriter], None]) -> AsyncIterator[PeerConnection]:
    """A connection to something that answers every request with `reply`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        reply(writer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = await open_connection(ZONE_CACHE, "127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        yield connection
    finally:
        connection.close()
        server.close()


@pytest.mark.parametrize("frame", [b"\0\0\0\0xx", b"\0\0\0\2xx", b"\xff\xff\xff\xffxx"])
async def test_a_frame_without_a_correlation_id_ends_the_connection(frame: bytes) -> None:
    async with _peer(lambda writer: writer.write(frame)) as connection:
        with pytest.raises(UnavailableError):
            await connection.ask(connection.next_id(), b"request", 1_000)
        assert connection.closed


@pytest.mark.parametrize("surplus", [1, 128 * 1024 * 1024])
async def test_six_bytes_that_declare_more_than_was_asked_end_the_connection(surplus: int) -> None:
    """And no memory is allocated for what they declare."""
    most = wire.largest_answer(RANGES)
    async with _peer(lambda writer: writer.write(struct.pack(">iH", most + surplus, 0))) as connection:
        with pytest.raises(UnavailableError):
            await connection.ask(connection.next_id(), b"request", most)
        assert connection.closed
        assert connection._frames.frame is None


async def test_an_answer_of_exactly_what_was_asked_is_read() -> None:
    answer = bytes(_answer())
    assert len(answer) == wire.largest_answer(RANGES)
    framed = struct.pack(">i", len(answer)) + struct.pack(">i", 1) + answer[4:]
    async with _peer(lambda writer: writer.write(framed)) as connection:
        correlation_id = connection.next_id()
        assert correlation_id == 1
        assert len(await connection.ask(correlation_id, b"request", len(answer))) == len(answer)
