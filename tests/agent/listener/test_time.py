"""What a connection may only do for a limited time: be idle, send half a frame, leave its replies unread."""

from __future__ import annotations

import struct

from headrace.protocol.request import Request, Response
from tests.agent.listener.listener_client import MIB, Gate, echo, frame, limits, listening, produce_frame, until
from tests.manual_clock import ManualClock


async def test_an_idle_connection_is_closed(fake_clock: ManualClock) -> None:
    async with listening(echo, limits(idle_ms=60_000), fake_clock) as server:
        idle, busy = await server.connect(), await server.connect()
        for i in range(3):
            await fake_clock.advance(30)
            await busy.send(frame(i))
            assert (await busy.reply())[0] == i
        assert await idle.ended() == b""
        await busy.send(frame(9))
        assert (await busy.reply())[0] == 9


async def test_a_connection_that_waits_for_us_is_not_idle(fake_clock: ManualClock) -> None:
    gate = Gate()
    async with listening(gate.handle, limits(idle_ms=60_000, memory=1000), fake_clock) as server:
        working, waiting = await server.connect(), await server.connect()
        await working.send(produce_frame(0, 900))
        await until(gate.has_started(1))
        await waiting.send(produce_frame(1, 900))
        await until(lambda: server.metric("headrace_kafka_paused_producers") == 1)
        await fake_clock.advance(600)
        gate.open(0, 1)
        assert (await working.reply())[0] == 0
        assert (await waiting.reply())[0] == 1
        gate.open(2, 3)
        for correlation_id, client in ((2, working), (3, waiting)):
            await client.send(frame(correlation_id))
            assert (await client.reply())[0] == correlation_id


async def test_half_a_frame_does_not_hold_memory_permanently(fake_clock: ManualClock) -> None:
    async with listening(echo, limits(memory=100_000), fake_clock) as server:
        slow, other = await server.connect(), await server.connect()
        await slow.send(produce_frame(0, 90_000)[:100])
        await until(lambda: server.metric("headrace_kafka_budget_bytes") > 0)
        await other.send(produce_frame(1, 90_000))
        await until(lambda: server.metric("headrace_kafka_paused_producers") == 1)
        for _ in range(7):
            slow.writer.write(b"p")  # a byte now and then does not help
            await fake_clock.advance(1)
        assert await slow.ended() == b""
        assert await other.reply() == (1, b"p" * 90_000)
        assert server.metric("headrace_kafka_connections_closed_total", reason="stalled") == 1


async def test_a_client_that_does_not_read_its_replies_is_given_up(fake_clock: ManualClock) -> None:
    async def flood(request: Request) -> Response:
        return Response([struct.pack(">i", request.correlation_id), bytes(20 * MIB)])

    async with listening(flood, limits(idle_ms=60_000), fake_clock) as server:
        client = await server.connect()
        await client.send(frame(0))
        await until(lambda: server.metric("headrace_kafka_sent_bytes_total") > 0)
        await fake_clock.advance(120)
        await until(lambda: server.metric("headrace_kafka_connections") == 0)
        assert server.metric("headrace_kafka_connections_closed_total", reason="not_reading") == 1
