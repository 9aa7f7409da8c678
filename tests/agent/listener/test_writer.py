"""The write side: bytes in order, nothing copied while the client is slow."""

from __future__ import annotations

import asyncio
import random
import socket
import struct

import pytest

from headrace.agent.listener.replies import ReplyWriter

PIECE = 64 * 1024


class Forwarding(asyncio.Protocol):
    """What a connection does for its writer."""

    writer: ReplyWriter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.writer = ReplyWriter(transport)
        self.writer.begin()

    def pause_writing(self) -> None:
        self.writer.pause()

    def resume_writing(self) -> None:
        self.writer.resume()
        asyncio.get_running_loop().call_soon(self.writer.flush)


async def _pair() -> tuple[Forwarding, socket.socket]:
    """A protocol on one end of a connection with small buffers, and the other end."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        end.setblocking(False)
    _, protocol = await asyncio.get_running_loop().create_connection(Forwarding, sock=ours)
    return protocol, theirs


async def _read(theirs: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await asyncio.get_running_loop().sock_recv(theirs, size - len(data))
    return data


@pytest.mark.parametrize("seed", range(5))
async def test_replies_arrive_whole_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    protocol, theirs = await _pair()
    writer, expected, seen = protocol.writer, b"", b""
    for _ in range(40):
        sizes = [rng.choice((0, 1, 50, 5_000, 70_000, 200_000)) for _ in range(rng.randint(0, 8))]
        buffers: list[bytes | memoryview] = [memoryview(rng.randbytes(size)) for size in sizes]
        frame = struct.pack(">i", sum(sizes)) + b"".join(buffers)
        assert writer.add(buffers) == len(frame)
        writer.flush()
        expected += frame
        seen += await _read(theirs, rng.randint(0, len(expected) - len(seen)))
        assert protocol.transport.get_write_buffer_size() <= PIECE, "what waits is not copied"
    seen += await _read(theirs, len(expected) - len(seen))
    assert seen == expected
    await asyncio.sleep(0.01)
    assert writer.empty
    protocol.transport.close()
    theirs.close()


async def test_more_buffers_than_one_call_takes() -> None:
    protocol, theirs = await _pair()
    protocol.writer.add([b"%05d" % i for i in range(3000)])
    protocol.writer.flush()
    assert await _read(theirs, 4 + 15_000) == struct.pack(">i", 15_000) + b"".join(b"%05d" % i for i in range(3000))
    protocol.transport.close()
    theirs.close()


async def test_a_client_that_is_gone_aborts_the_connection() -> None:
    protocol, theirs = await _pair()
    theirs.close()
    protocol.writer.add([b"late"])
    protocol.writer.flush()
    assert protocol.transport.is_closing()
    protocol.writer.add([b"later"])
    protocol.writer.flush()
