"""Hostile connections over real sockets, while another connection keeps getting right answers.

Every API is registered with a handler that decodes its request for real, so that what bytes can do
to a decoder they can do here. A run replays from its seed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from headrace.agent.apis.dispatch import Dispatcher
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.protocol.fetch_codec import decode_fetch
from headrace.protocol.produce_codec import decode_produce
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode
from tests.agent.listener.listener_client import Client, Listening, frame, limits, listening, until
from tests.protocol.client_vectors import vectors

SERVED = [v.frame for v in vectors() if v.api_key in APIS]


async def _decode(request: Request) -> Response:
    if request.api_key == ApiKey.PRODUCE:
        decode_produce(request.body, request.api_version)
    elif request.api_key == ApiKey.FETCH:
        decode_fetch(request.body, request.api_version)
    else:
        decode(request)
    return Response([struct.pack(">i", request.correlation_id)])


def _framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randint(1, 300))


def framed_noise(rng: random.Random) -> bytes:
    return _framed(noise(rng))


def known_header_and_noise(rng: random.Random) -> bytes:
    api = rng.choice(list(APIS.values()))
    return frame(1, noise(rng), api_key=api.key, version=rng.randint(api.min_version - 1, api.max_version + 1))


def flipped_bits(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(SERVED))
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return _framed(bytes(data))


def truncated(rng: random.Random) -> bytes:
    """The length says that the frame is whole; its fields say otherwise."""
    data = rng.choice(SERVED)
    return _framed(data[: rng.randrange(len(data))])


def huge_length(rng: random.Random) -> bytes:
    return struct.pack(">ih", rng.choice((2**31 - 1, 2**30, 10**9, -1, -(2**31))), rng.choice((0, 1, 3))) + noise(rng)


def huge_counts(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(SERVED))
    at = rng.randrange(10, len(data))
    data[at : at + 5] = rng.choice((b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07"))
    return _framed(bytes(data))


ATTACKS = [noise, framed_noise, known_header_and_noise, flipped_bits, truncated, huge_length, huge_counts]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="headrace.agent.listener")


@asynccontextmanager
async def _besieged() -> AsyncIterator[tuple[Listening, Callable[[], asyncio.Future[None]]]]:
    """A listener, and a call that checks whether a well-behaved client is still served."""
    dispatcher = Dispatcher()
    for key in set(APIS) - {ApiKey.API_VERSIONS}:
        dispatcher.register(key, _decode)
    async with listening(dispatcher.handle, limits(request_max=100_000, memory=200_000)) as server:
        good = await server.connect()
        await good.send(frame(1, api_key=ApiKey.API_VERSIONS, version=0))
        _, expected = await good.reply()

        async def still_served() -> None:
            await good.send(frame(2, api_key=ApiKey.API_VERSIONS, version=0), frame(3, b"\0\0\0\0"))
            assert await good.reply() == (2, expected)
            assert await good.reply() == (3, b"")

        yield server, lambda: asyncio.ensure_future(still_served())
        await good.close()
        await until(lambda: server.metric("headrace_kafka_connections") == 0)
        assert server.metric("headrace_kafka_budget_bytes") == 0
        failed = server.metric("headrace_kafka_connections_closed_total", reason="failed")
        assert failed == 0, "malformed input is refused by name; it never surprises a handler"


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_hostile_bytes_affect_no_other_client(attack: Callable[[random.Random], bytes], seed: int) -> None:
    rng = random.Random(seed)
    async with _besieged() as (server, still_served):
        for _ in range(25):
            clients = [await server.connect() for _ in range(5)]
            for client in clients:
                await client.send(*(attack(rng) for _ in range(rng.randint(1, 3))))
            await still_served()
            for client in clients:
                client.writer.write_eof()
            await asyncio.gather(*(client.ended() for client in clients))
            for client in clients:
                await client.close()


async def test_clients_that_vanish_in_the_middle_of_a_frame_leave_nothing_behind() -> None:
    rng = random.Random(7)
    async with _besieged() as (server, still_served):
        for _ in range(40):
            client = await server.connect()
            whole = _framed(rng.choice(SERVED))
            await client.send(whole[: rng.randrange(1, len(whole))])
            client.writer.transport.abort()
            await still_served()


async def test_clients_that_vanish_before_they_are_accepted_leave_nothing_behind() -> None:
    async with _besieged() as (server, still_served):
        for _ in range(50):
            client = socket.create_connection(("127.0.0.1", server.port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()  # a reset, before the loop had a turn to accept
        await still_served()


async def test_slow_clients_delay_no_other() -> None:
    """Many connections that send a byte at a time, produce frames that never end among them."""
    async with _besieged() as (server, still_served):
        loris = [await server.connect() for _ in range(20)]
        drip = [_framed(SERVED[i * 7 % len(SERVED)]) for i in range(20)]
        for position in range(12):
            for client, data in zip(loris, drip, strict=True):
                await client.send(data[position : position + 1])
            await still_served()
        for client in loris:
            await client.close()


async def test_the_good_client_has_a_separate_connection() -> None:
    """A bad request ends the connection that it came on, even when that one behaved until then."""
    async with _besieged() as (server, still_served):
        client: Client = await server.connect()
        await client.send(frame(1, api_key=ApiKey.API_VERSIONS, version=0))
        assert (await client.reply())[0] == 1
        await client.send(frame(2, b"\x7f\xff\xff\xff"))
        assert await client.ended() == b""
        await still_served()
