"""One connection: order of starts and replies, bounds on what is in progress, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import struct
import tracemalloc

import pytest

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import CloseConnection, Request, Response
from headrace.storage.errors import InvalidError, OutcomeUnknownError
from tests.agent.listener.listener_client import MIB, Gate, answer, echo, frame, limits, listening, produce_frame, until


async def test_a_request_reaches_the_handler_whole() -> None:
    seen: list[Request] = []

    async def handle(request: Request) -> Response:
        seen.append(request)
        return answer(request, b"done")

    async with listening(handle) as server:
        client = await server.connect()
        await client.send(frame(5, b"body", api_key=3, version=4))
        assert await client.reply() == (5, b"done")
        (request,) = seen
        assert (request.api_key, request.api_version, request.client_id) == (3, 4, "test")
        assert (bytes(request.body), request.body.readonly) == (b"body", True)
        assert request.connection.peer.startswith("127.0.0.1:")


async def test_what_follows_a_change_begins_when_the_change_is_answered() -> None:
    """Clients send DeleteRecords and ListOffsets at once, and expect the second to see the first."""
    gate = Gate()
    async with listening(gate.handle) as server:
        client, other = await server.connect(), await server.connect()
        await client.send(frame(1, api_key=ApiKey.FETCH, version=4) + frame(2, api_key=ApiKey.DELETE_RECORDS))
        await client.send(frame(3, api_key=ApiKey.LIST_OFFSETS, version=1))
        await until(gate.has_started(2))
        await other.send(frame(4, api_key=ApiKey.LIST_OFFSETS, version=1))
        await until(gate.has_started(3))
        assert gate.started == [1, 2, 4], "the third waits, another connection does not"
        gate.open(2)
        await until(gate.has_started(4))
        assert gate.started == [1, 2, 4, 3]
        gate.open(1, 3, 4)
        assert [(await client.reply())[0] for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("size", [0, 1, 20_000, 200_000, 3 * MIB])
async def test_bodies_of_every_size_survive(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with listening(echo) as server:
        client = await server.connect()
        await client.send(*(frame(i, body) for i in range(3)))
        for i in range(3):
            assert await client.reply() == (i, body)


async def test_a_body_stays_valid_while_it_is_referenced() -> None:
    held: list[memoryview] = []

    async def keep(request: Request) -> Response:
        held.append(request.body)
        return answer(request)

    bodies = [bytes([i]) * 5000 for i in range(50)]
    async with listening(keep) as server:
        client = await server.connect()
        for i, body in enumerate(bodies):
            await client.send(frame(i, body))
            await client.reply()
    assert [bytes(body) for body in held] == bodies


async def test_requests_start_in_order_and_are_answered_in_order() -> None:
    gate = Gate()
    async with listening(gate.handle) as server:
        client = await server.connect()
        await client.send(*(frame(i) for i in range(10)))
        await until(gate.has_started(10))
        assert gate.started == list(range(10))
        gate.open(*range(9, 0, -1))
        answer = asyncio.ensure_future(client.reply())
        await asyncio.sleep(0.01)
        assert not answer.done(), "the first is not answered, so none is"
        gate.open(0)
        assert (await answer)[0] == 0
        assert [(await client.reply())[0] for _ in range(9)] == list(range(1, 10))


async def test_a_request_without_an_answer_leaves_no_gap() -> None:
    async def handle(request: Request) -> Response:
        return Response(None) if request.correlation_id == 1 else answer(request)

    async with listening(handle) as server:
        client = await server.connect()
        await client.send(frame(0), frame(1), frame(2))
        assert [(await client.reply())[0] for _ in range(2)] == [0, 2]


async def test_reading_pauses_at_the_limit_of_requests_in_progress() -> None:
    gate = Gate()
    async with listening(gate.handle, limits(inflight=3)) as server:
        client, other = await server.connect(), await server.connect()
        await client.send(*(frame(i) for i in range(8)))
        await until(gate.has_started(3))
        await other.send(frame(100))
        await until(gate.has_started(4))
        assert gate.started == [0, 1, 2, 100], "another connection is not held up"
        gate.open(0, 1)
        await until(gate.has_started(6))
        assert gate.started[4:] == [3, 4]
        gate.open(*range(2, 8), 100)
        assert [(await client.reply())[0] for _ in range(8)] == list(range(8))


async def test_more_produce_requests_than_others_are_in_progress() -> None:
    """A producer that waits for no answer sends one for each few records; 64 of them would be 640 a second here."""
    gate = Gate()
    async with listening(gate.handle, limits(inflight=200)) as server:
        client, other = await server.connect(), await server.connect()
        await client.send(*(produce_frame(i, 100) for i in range(250)))
        await until(gate.has_started(200))
        await other.send(*(frame(i) for i in range(1000, 1100)))
        await until(gate.has_started(264))
        assert gate.started == [*range(200), *range(1000, 1064)]
        gate.open(*range(250), *range(1000, 1100))
        assert [(await client.reply())[0] for _ in range(250)] == list(range(250))
        assert [(await other.reply())[0] for _ in range(100)] == list(range(1000, 1100))


async def test_produce_frames_wait_for_memory_and_nothing_else_does() -> None:
    gate = Gate()
    async with listening(gate.handle, limits(memory=100_000)) as server:
        first, second, third = [await server.connect() for _ in range(3)]
        await first.send(produce_frame(0, 90_000))
        await until(gate.has_started(1))
        await second.send(produce_frame(1, 50_000), frame(2))
        await until(lambda: server.metric("headrace_kafka_paused_producers") == 1)
        await third.send(frame(3), frame(4, b"x" * 200_000))
        await until(gate.has_started(3))
        assert gate.started == [0, 3, 4], "what is not a produce request never waits"
        assert 90_000 < server.metric("headrace_kafka_budget_bytes") < 100_000
        gate.open(0)
        await until(gate.has_started(5))
        assert gate.started[3:] == [1, 2]
        gate.open(1, 2, 3, 4)
        assert [(await second.reply())[0] for _ in range(2)] == [1, 2]
        await until(lambda: server.metric("headrace_kafka_budget_bytes") == 0)
        for client in (first, second, third):
            await client.close()


async def test_what_paused_producers_sent_stays_in_the_kernel() -> None:
    """The budget does not count what was read behind a frame's head, so that must be little."""
    gate = Gate()
    async with listening(gate.handle, limits(memory=1000)) as server:
        clients = [await server.connect() for _ in range(41)]
        await clients[0].send(produce_frame(0, 900))
        await until(gate.has_started(1))
        tracemalloc.start()
        for i, client in enumerate(clients[1:], start=1):
            await client.send(produce_frame(i, 100_000))
            await until(lambda i=i: server.metric("headrace_kafka_paused_producers") == i)
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert held < 1_000_000, "40 x 100 kB were sent"
        gate.open(*range(41))
        for client in clients:
            await client.reply()
            await client.close()


async def test_a_frame_larger_than_all_memory_is_served_alone() -> None:
    async with listening(echo, limits(memory=100_000)) as server:
        clients = [await server.connect() for _ in range(4)]
        for i, client in enumerate(clients):
            await client.send(produce_frame(i, 400_000))
        for i, client in enumerate(clients):
            assert await client.reply() == (i, b"p" * 400_000)
            await client.close()
        assert server.metric("headrace_kafka_budget_bytes") == 0


async def test_a_client_that_leaves_gives_its_memory_back() -> None:
    gate = Gate()
    async with listening(gate.handle, limits(memory=100_000)) as server:
        half, waiting, working = [await server.connect() for _ in range(3)]
        await working.send(produce_frame(0, 40_000))
        await until(gate.has_started(1))
        await half.send(produce_frame(1, 50_000)[:20_000])
        await until(lambda: server.metric("headrace_kafka_budget_bytes") > 90_000)
        await waiting.send(produce_frame(2, 50_000))
        await until(lambda: server.metric("headrace_kafka_paused_producers") == 1)
        await working.close()
        await half.close()
        await until(gate.has_started(2))
        assert gate.started == [0, 2], "the half frame's memory went to the one that waited"
        assert server.metric("headrace_kafka_budget_bytes") > 90_000, "a handler in progress keeps its frame"
        gate.open(0, 2)
        assert (await waiting.reply())[0] == 2
        await until(lambda: server.metric("headrace_kafka_budget_bytes") == 0)


async def test_a_handler_is_not_cancelled_when_its_client_leaves() -> None:
    finished, connections = asyncio.Event(), []
    release = asyncio.Event()

    async def handle(request: Request) -> Response:
        connections.append(request.connection)
        await release.wait()
        finished.set()
        return answer(request)

    async with listening(handle) as server:
        client = await server.connect()
        await client.send(frame(1))
        await until(lambda: bool(connections))
        await client.close()
        await until(lambda: connections[0].closed)
        release.set()
        await finished.wait()


async def test_a_large_reply_to_a_slow_reader_is_whole_and_stops_reading() -> None:
    big = bytes(range(256)) * 80_000  # 20 MB: more than sockets hold
    started: list[int] = []

    async def handle(request: Request) -> Response:
        started.append(request.correlation_id)
        view = memoryview(big)
        pieces = [view[i : i + 65_536] for i in range(0, len(view), 65_536)]
        return Response([struct.pack(">i", request.correlation_id), *pieces])

    async with listening(handle) as server:
        client, other = await server.connect(), await server.connect()
        await client.send(frame(0))
        await until(lambda: started == [0])
        await asyncio.sleep(0.05)
        await client.send(frame(1))
        await other.send(frame(100))
        assert (await other.reply())[1] == big
        assert started == [0, 100], "nothing more is read from a client that does not read"
        assert await client.reply() == (0, big)
        assert await client.reply() == (1, big)


@pytest.mark.parametrize(
    "error", [CloseConnection("no"), InvalidError("malformed"), OutcomeUnknownError("lost"), RuntimeError("bug")]
)
async def test_a_failing_handler_ends_its_connection_after_the_replies_before_it(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(request: Request) -> Response:
        if request.correlation_id == 1:
            raise error
        await asyncio.sleep(0.01)
        return answer(request)

    async with listening(handle) as server:
        client, other = await server.connect(), await server.connect()
        with caplog.at_level(logging.WARNING):
            await client.send(frame(0), frame(1), frame(2))
            assert (await client.reply())[0] == 0
            assert await client.ended() == b""
        assert "api=Metadata version=1 client_id='test'" in caplog.text
        await other.send(frame(7))
        assert (await other.reply())[0] == 7


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(struct.pack(">ih", 2**31 - 1, 3), id="oversized"),
        pytest.param(struct.pack(">ih", -1, 3), id="negative"),
        pytest.param(struct.pack(">ihhih", 10, 3, 1, 1, 99), id="malformed header"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="http"),
    ],
)
async def test_a_malformed_frame_ends_its_connection_after_the_replies_before_it(bad: bytes) -> None:
    async with listening(echo) as server:
        client, other = await server.connect(), await server.connect()
        await client.send(frame(0, b"fine"), bad)
        assert await client.reply() == (0, b"fine")
        assert await client.ended() == b""
        assert server.metric("headrace_kafka_connections_closed_total", reason="malformed") == 1
        await other.send(frame(7))
        assert (await other.reply())[0] == 7


async def test_too_many_connections_are_closed_at_once() -> None:
    async with listening(echo, limits(connections=2)) as server:
        first, second = await server.connect(), await server.connect()
        for client in (first, second):
            await client.send(frame(1))
            await client.reply()
        third = await server.connect()
        assert await third.ended() == b""
        await first.close()
        await until(lambda: server.metric("headrace_kafka_connections") == 1)
        fourth = await server.connect()
        await fourth.send(frame(4))
        assert (await fourth.reply())[0] == 4


async def test_requests_and_bytes_are_counted() -> None:
    async with listening(echo) as server:
        client = await server.connect()
        await client.send(frame(1, b"12345"), frame(2, api_key=83))
        await client.reply()
        await client.reply()
        assert server.metric("headrace_kafka_requests_total", api="Metadata", version="1") == 1
        assert server.metric("headrace_kafka_requests_total", api="other", version="other") == 1
        assert server.metric("headrace_kafka_request_seconds_count", api="Metadata") == 1
        assert server.metric("headrace_kafka_received_bytes_total") == len(frame(1, b"12345")) + len(frame(2))
        assert server.metric("headrace_kafka_sent_bytes_total") == 8 + 5 + 8


async def test_each_request_is_answered_or_counted_as_unanswered() -> None:
    """Of a refused request, those behind it, and one of a client that leaves: then nothing is in progress."""
    waiting: list[asyncio.Future[None]] = []

    async def handle(request: Request) -> Response:
        if request.correlation_id == 1:
            raise InvalidError("malformed")
        if request.correlation_id == 3:
            waiting.append(asyncio.get_running_loop().create_future())
            await waiting[0]
        return answer(request)

    async with listening(handle) as server:
        refused, gone = await server.connect(), await server.connect()
        await refused.send(frame(0), frame(1), frame(2))
        await refused.reply()
        await refused.ended()
        await gone.send(frame(3))
        await until(lambda: bool(waiting))
        await gone.close()
        await until(lambda: server.metric("headrace_kafka_connections") == 0)
        waiting[0].set_result(None)
        received = server.metric("headrace_kafka_requests_total", api="Metadata", version="1")
        answered = server.metric("headrace_kafka_request_seconds_count", api="Metadata")
        unanswered = server.metric("headrace_kafka_requests_unanswered_total", api="Metadata")
        assert (received, answered, unanswered) == (4, 1, 3)
