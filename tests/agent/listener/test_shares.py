"""Frames and replies have bounded memory, and no client's half frames or unread replies stop another client."""

from __future__ import annotations

import asyncio
import struct

import pytest

from headrace.agent.access.listener_security import ListenerSecurity
from headrace.agent.listener.host import Limits
from headrace.config.listeners import listeners
from headrace.config.load import load
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import Request, Response
from headrace.storage.clock import SystemClock
from tests.agent.listener.listener_client import (
    MIB,
    Client,
    Gate,
    Listening,
    answer,
    echo,
    frame,
    listening,
    produce_frame,
    until,
)
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.requirement("X7")
KIB = 1024


def _limits(**more: object) -> Limits:
    values: dict[str, object] = {
        "socket_request_max_bytes": 100 * MIB,
        "buffer_memory_bytes": 64 * MIB,
        "max_inflight_requests": 64,
        "max_connections": 1_000,
        "connections_max_idle_ms": 600_000,
        "request_memory_bytes": 8 * MIB,
        "reply_memory_bytes": 4 * MIB,
        "control_request_max_bytes": 2 * MIB,
    }
    return Limits(**(values | more))  # type: ignore[arg-type]


def _share(server: Listening, name: str) -> float:
    return server.metric("headrace_kafka_memory_bytes", share=name)


def _half(size: int, *, api_key: int, version: int = 1) -> bytes:
    """12 bytes of a frame that declares `size` bytes."""
    return (struct.pack(">i", size) + frame(0, api_key=api_key, version=version)[4:])[:12]


async def _connect(server: Listening, count: int) -> list[Client]:
    return [await server.connect() for _ in range(count)]


async def test_a_frame_that_only_produce_may_be_is_refused_from_its_head() -> None:
    async with listening(echo, _limits()) as server:
        for api_key in (ApiKey.METADATA, ApiKey.JOIN_GROUP, ApiKey.FETCH):
            client = await server.connect()
            await client.send(_half(100 * MIB, api_key=api_key))
            assert await client.ended() == b""
        assert server.metric("headrace_limit_reached_total", limit="control.request.max.bytes") == 3
        assert _share(server, "requests") == 0


async def test_an_api_that_is_not_kafkas_gets_small_frames_only() -> None:
    async with listening(echo, _limits()) as server:
        client = await server.connect()
        await client.send(_half(MIB, api_key=31_000))
        assert await client.ended() == b""
        assert server.metric("headrace_limit_reached_total", limit="unknown_api") == 1


async def test_before_authentication_frames_are_small() -> None:
    settings = load(flags={"listeners": "SASL_PLAINTEXT://127.0.0.1:0"})
    security = ListenerSecurity(settings, listeners(settings).serving[0], SystemClock())
    async with listening(echo, _limits(), security=security) as server:
        client = await server.connect()
        await client.send(produce_frame(1, 400 * KIB))
        assert (await client.reply())[0] == 1
        await client.send(_half(600 * KIB, api_key=ApiKey.PRODUCE))
        assert await client.ended() == b""


async def test_many_half_sent_frames_do_not_stop_other_clients(fake_clock: ManualClock) -> None:
    """Large Produce frames fill their share and no more; small ones and all other requests continue."""
    async with listening(echo, _limits(), fake_clock) as server:
        attackers = await _connect(server, 20)
        for client in attackers:
            await client.send(_half(30 * MIB, api_key=ApiKey.PRODUCE, version=7))
        await until(lambda: server.metric("headrace_kafka_memory_waiting", share="produce") == 19)
        assert _share(server, "produce") <= 64 * MIB
        producer = await server.connect()
        for number in range(50):
            await producer.send(produce_frame(number, 100 * KIB), frame(1_000 + number))
            assert (await producer.reply())[0] == number
            assert (await producer.reply())[0] == 1_000 + number
        large = await server.connect()
        large.writer.write(produce_frame(7, 40 * MIB))
        for _ in range(80):
            await fake_clock.advance(1)
        assert (await large.reply())[0] == 7, "frames that stall while others wait are closed, one after another"
        assert server.metric("headrace_kafka_connections_closed_total", reason="stalled") == 20
        for client in (producer, large, *attackers):
            await client.close()
        await until(lambda: _share(server, "produce") == 0)


async def test_large_control_frames_leave_room_for_small_ones(fake_clock: ManualClock) -> None:
    async with listening(echo, _limits(), fake_clock) as server:
        attackers = await _connect(server, 10)
        for client in attackers:
            await client.send(_half(MIB, api_key=ApiKey.JOIN_GROUP))
        await until(lambda: server.metric("headrace_kafka_memory_waiting", share="requests") > 0)
        assert _share(server, "requests") <= 4 * MIB, "half of the share is for frames of at most 64 KiB"
        other = await server.connect()
        for number in range(100):
            await other.send(frame(number, bytes(10 * KIB)))
            assert (await other.reply())[0] == number
        for client in (other, *attackers):
            await client.close()


async def test_a_slow_frame_is_not_disturbed_while_nothing_waits(fake_clock: ManualClock) -> None:
    async with listening(echo, _limits(), fake_clock) as server:
        slow = await server.connect()
        data = produce_frame(1, MIB)
        await slow.send(data[:100])
        for _ in range(30):
            await fake_clock.advance(1)
        await slow.send(data[100:])
        assert (await slow.reply())[0] == 1


async def test_requests_in_progress_wait_while_produce_is_stuck_and_groups_go_on() -> None:
    """The bucket is away: no Produce is answered, their share is full, and everything else is served."""
    gate = Gate()

    async def handle(request: Request) -> Response:
        return await gate.handle(request) if request.api_key == ApiKey.PRODUCE else answer(request)

    async with listening(handle, _limits()) as server:
        producers = await _connect(server, 200)
        for number, client in enumerate(producers):
            await client.send(produce_frame(number, 500 * KIB))
        await until(lambda: server.metric("headrace_kafka_paused_producers") > 50)
        assert _share(server, "produce") <= 64 * MIB
        member = await server.connect()
        for number in range(100):
            await member.send(frame(number, api_key=ApiKey.HEARTBEAT))
            assert (await member.reply())[0] == number
        gate.open(*range(200))
        for number, client in enumerate(producers):
            assert (await client.reply())[0] == number
            await client.close()


async def test_unread_replies_count_until_they_are_read() -> None:
    big = bytes(3 * MIB)

    async def handle(request: Request) -> Response:
        await request.connection.replies.reserve(len(big))
        return Response([struct.pack(">i", request.correlation_id), big], len(big))

    async with listening(handle, _limits(reply_memory_bytes=20 * MIB)) as server:
        clients = await _connect(server, 20)
        for client in clients:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(frame(1))
        await until(
            lambda: (
                server.metric("headrace_kafka_memory_waiting", share="replies") > 0
                or _share(server, "replies") > 21 * MIB
            )
        )
        assert _share(server, "replies") <= 21 * MIB
        for client in clients:
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert (await client.reply())[1] == big
            await client.close()
        await until(lambda: _share(server, "replies") == 0)


async def test_clients_that_do_not_read_lose_their_connection_to_those_who_wait(fake_clock: ManualClock) -> None:
    big = bytes(8 * MIB)

    async def handle(request: Request) -> Response:
        if request.api_key == ApiKey.HEARTBEAT:
            return answer(request)
        await request.connection.replies.reserve(len(big))
        return Response([struct.pack(">i", request.correlation_id), big], len(big))

    async with listening(handle, _limits(reply_memory_bytes=20 * MIB), fake_clock) as server:
        attackers = await _connect(server, 6)
        for client in attackers:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(frame(1))
        await until(lambda: server.metric("headrace_kafka_memory_waiting", share="replies") > 0)
        member, reader = await server.connect(), await server.connect()
        await member.send(frame(5, api_key=ApiKey.HEARTBEAT))
        assert (await member.reply())[0] == 5, "a small reply never waits"
        await reader.send(frame(9))
        reading = asyncio.ensure_future(reader.reply())
        for _ in range(40):
            await fake_clock.advance(1)
        assert (await reading)[0] == 9
        assert server.metric("headrace_kafka_connections_closed_total", reason="not_reading") >= 4
        for client in (member, reader, *attackers):
            await client.close()
        await until(lambda: _share(server, "replies") == 0)


async def test_a_second_fetch_of_a_connection_starts_when_the_first_is_answered() -> None:
    gate = Gate()
    async with listening(gate.handle, _limits()) as server:
        client = await server.connect()
        fetches = [frame(number, api_key=ApiKey.FETCH, version=4) for number in range(4)]
        await client.send(frame(10, api_key=ApiKey.HEARTBEAT), *fetches)
        gate.open(10)
        assert (await client.reply())[0] == 10
        for number in range(4):
            await until(gate.has_started(number + 2))
            assert gate.started == [10, *range(number + 1)]
            gate.open(number)
            assert (await client.reply())[0] == number


async def test_a_client_that_leaves_while_its_fetch_waits_leaves_nothing_behind() -> None:
    gate = Gate()
    async with listening(gate.handle, _limits()) as server:
        client = await server.connect()
        await client.send(*(frame(number, api_key=ApiKey.FETCH, version=4) for number in range(2)))
        await until(gate.has_started(1))
        client.writer.transport.abort()
        gate.open(0, 1)
        await until(lambda: server.metric("headrace_kafka_connections") == 0)
        await until(lambda: _share(server, "requests") == 0)


async def test_slow_large_frames_do_not_stop_ordinary_producers(fake_clock: ManualClock) -> None:
    """Frames of 30 MiB that come at 300 KiB a second; others send 1 MiB, as Kafka's producers do."""
    async with listening(echo, _limits(), fake_clock) as server:
        attackers = await _connect(server, 10)
        for client in attackers:
            await client.send(_half(30 * MIB, api_key=ApiKey.PRODUCE, version=7))
        await until(lambda: server.metric("headrace_kafka_memory_waiting", share="produce") == 9)
        producer = await server.connect()
        for second in range(40):
            for client in attackers:
                if not client.writer.is_closing():
                    client.writer.write(bytes(300 * KIB))
            await producer.send(produce_frame(second, MIB))
            assert (await producer.reply())[0] == second
            await fake_clock.advance(1)
        closed = server.metric("headrace_kafka_connections_closed_total", reason="stalled")
        assert closed >= 3, "one that is too slow for its size makes room for the next"
        for client in (producer, *attackers):
            await client.close()
        await until(lambda: _share(server, "produce") == 0)


async def test_a_byte_now_and_then_keeps_no_replies(fake_clock: ManualClock) -> None:
    big = bytes(8 * MIB)

    async def handle(request: Request) -> Response:
        reserved, _ = await request.connection.replies.reserve(len(big))
        return Response([struct.pack(">i", request.correlation_id), big], reserved)

    async with listening(handle, _limits(reply_memory_bytes=12 * MIB), fake_clock) as server:
        slow, waiting = await _connect(server, 2)
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await slow.send(frame(1))
        await until(lambda: _share(server, "replies") > MIB)
        await waiting.send(frame(2))
        reading = asyncio.ensure_future(waiting.reply())
        for _ in range(20):
            slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(0)
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await fake_clock.advance(1)
        assert (await reading)[0] == 2
        for client in (slow, waiting):
            await client.close()


async def test_other_replies_do_not_wait_behind_records(fake_clock: ManualClock) -> None:
    """A Metadata request waits for its turn only, while Fetch answers fill what they may."""
    big = bytes(8 * MIB)

    async def handle(request: Request) -> Response:
        if request.api_key == ApiKey.METADATA:
            return answer(request)
        reserved, _ = await request.connection.replies.reserve(len(big), MIB)
        return Response([struct.pack(">i", request.correlation_id), memoryview(big)[:reserved]], reserved)

    async with listening(handle, _limits(reply_memory_bytes=4 * MIB), fake_clock) as server:
        attackers = await _connect(server, 20)
        for client in attackers:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(*(frame(number, api_key=ApiKey.FETCH, version=4) for number in range(40)))
        await until(lambda: server.metric("headrace_kafka_memory_waiting", share="replies") > 0)
        other = await server.connect()
        for number in range(20):
            await other.send(frame(number))
            assert (await other.reply())[0] == number
        assert _share(server, "replies") <= 4 * MIB
        for client in (other, *attackers):
            await client.close()
