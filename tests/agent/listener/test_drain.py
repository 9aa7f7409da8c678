"""A clean stop: nothing new is started, what is in progress is answered, and it ends in time."""

from __future__ import annotations

import asyncio
import struct

import pytest

from headrace.protocol.request import Request, Response
from tests.agent.listener.listener_client import MIB, Client, frame, limits, listening, produce_frame, until


class Slow:
    """Answers when released."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.cancelled: list[int] = []
        self.release = asyncio.Event()

    async def handle(self, request: Request) -> Response:
        self.started.append(request.correlation_id)
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.correlation_id)
            raise
        return Response([struct.pack(">i", request.correlation_id)])


async def test_what_is_in_progress_is_answered_and_nothing_new_is_started() -> None:
    slow = Slow()
    async with listening(slow.handle) as server:
        client, idle = await server.connect(), await server.connect()
        await client.send(frame(0), frame(1), frame(2, b"x" * 500)[:100])
        await until(lambda: len(slow.started) == 2)
        drained = asyncio.ensure_future(server.listener.drain(30))
        assert await idle.ended() == b"", "who has nothing in progress is closed at once"
        await client.send(frame(2, b"x" * 500)[100:], frame(3))
        with pytest.raises(ConnectionRefusedError):
            await Client.connect(server.port)
        assert not drained.done()
        slow.release.set()
        assert [(await client.reply())[0] for _ in range(2)] == [0, 1]
        await client.ended()
        await drained
        assert slow.started == [0, 1]


async def test_a_large_reply_is_flushed_before_the_connection_closes() -> None:
    big = bytes(20 * MIB)

    async def handle(request: Request) -> Response:
        return Response([struct.pack(">i", request.correlation_id), big])

    async with listening(handle) as server:
        client = await server.connect()
        await client.send(frame(0))
        await until(lambda: server.metric("headrace_kafka_sent_bytes_total") > 0)
        drained = asyncio.ensure_future(server.listener.drain(30))
        await asyncio.sleep(0.02)
        assert not drained.done()
        assert await client.reply() == (0, big)
        assert await client.ended() == b""
        await drained


async def test_a_producer_that_waits_for_memory_is_closed() -> None:
    slow = Slow()
    async with listening(slow.handle, limits(memory=1000)) as server:
        working, waiting = await server.connect(), await server.connect()
        await working.send(produce_frame(0, 900))
        await until(lambda: slow.started == [0])
        await waiting.send(produce_frame(1, 900))
        await until(lambda: server.metric("headrace_kafka_paused_producers") == 1)
        drained = asyncio.ensure_future(server.listener.drain(30))
        assert await waiting.ended() == b""
        slow.release.set()
        assert (await working.reply())[0] == 0
        await drained
        assert slow.started == [0]


async def test_after_the_grace_what_is_left_is_cut_off() -> None:
    slow = Slow()
    async with listening(slow.handle) as server:
        client = await server.connect()
        await client.send(frame(0))
        await until(lambda: slow.started == [0])
        await server.listener.drain(0.01)
        assert slow.cancelled == [0]
        assert await client.ended() == b""


async def test_a_handler_of_a_disconnected_client_is_waited_for() -> None:
    slow = Slow()
    async with listening(slow.handle) as server:
        client = await server.connect()
        await client.send(frame(0))
        await until(lambda: slow.started == [0])
        await client.close()
        await until(lambda: server.metric("headrace_kafka_connections") == 0)
        drained = asyncio.ensure_future(server.listener.drain(30))
        await asyncio.sleep(0.01)
        assert not drained.done()
        slow.release.set()
        await drained
        assert slow.cancelled == []


async def test_draining_an_idle_listener_twice_is_harmless() -> None:
    async with listening(Slow().handle) as server:
        await server.listener.drain(1)
        await server.listener.drain(1)
