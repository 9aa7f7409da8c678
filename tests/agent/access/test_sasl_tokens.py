"""SaslHandshake 0: tokens without Kafka's headers, over a real connection, as clients before Kafka 1.0 send them."""

from __future__ import annotations

import random
import struct
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from headrace.agent.listener.host import UNKNOWN_FRAME_BYTES
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import Request, Response
from headrace.storage.clock import SystemClock
from tests.agent.access.test_sasl import DIGESTS, ILLEGAL_STATE, UNSUPPORTED, ScramClient, World
from tests.agent.listener.listener_client import METADATA, Client, Listening, answer, frame, listening

pytestmark = pytest.mark.requirement("C13.2", "X2")


class Old:
    """A connection that uses version 0 of the handshake."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def handshake(self, mechanism: str, version: int = 0) -> int:
        """The error code."""
        await self.client.send(_handshake(mechanism, version))
        return int(struct.unpack_from(">h", (await self.client.reply())[1])[0])

    async def token(self, message: bytes) -> bytes:
        """The server's next message: four bytes of length, and nothing of Kafka's."""
        await self.client.send(struct.pack(">i", len(message)) + message)
        (size,) = struct.unpack(">i", await self.client.reader.readexactly(4))
        return await self.client.reader.readexactly(size)

    async def scram(self, mechanism: str, password: str = "pw") -> None:
        login = ScramClient(mechanism, "alice", password)
        assert await self.handshake(mechanism) == 0
        login.verify(await self.token(login.final(await self.token(login.first()))))

    async def is_served(self) -> bool:
        await self.client.send(frame(7, api_key=METADATA))
        return (await self.client.reply())[0] == 7


def _handshake(mechanism: str, version: int = 0) -> bytes:
    body = struct.pack(">h", len(mechanism)) + mechanism.encode()
    return frame(1, body, api_key=ApiKey.SASL_HANDSHAKE, version=version)


@asynccontextmanager
async def serving(world: World) -> AsyncIterator[Listening]:
    world.authentication._clock = world.authentication._log._clock = SystemClock()

    async def echo(request: Request) -> Response:
        return answer(request)

    def handle(request: Request) -> Awaitable[Response]:
        if request.api_key == ApiKey.SASL_HANDSHAKE:
            return world.authentication.handshake(request)
        if request.api_key == ApiKey.SASL_AUTHENTICATE:
            return world.authentication.authenticate(request)
        return world.authentication.gate(echo)(request)

    async with listening(handle, security=world.security, name="SASL_PLAINTEXT") as server:
        yield server


@asynccontextmanager
async def connected(world: World | None = None) -> AsyncIterator[Old]:
    async with serving(world or World(connection_failed_authentication_delay_ms=0)) as server:
        client = await server.connect()
        yield Old(client)
        await client.close()


@pytest.mark.parametrize("mechanism", list(DIGESTS))
async def test_scram_by_tokens_and_then_requests(mechanism: str) -> None:
    async with connected() as old:
        await old.scram(mechanism)
        assert await old.is_served()


async def test_plain_is_answered_by_an_empty_token() -> None:
    async with connected() as old:
        assert await old.handshake("PLAIN") == 0
        assert await old.token(b"\0alice\0pw") == b""
        assert await old.is_served()


async def test_tokens_that_come_with_the_handshake_are_read_after_it() -> None:
    """In any pieces."""
    token = b"\0alice\0pw"
    sent = _handshake("PLAIN") + struct.pack(">i", len(token)) + token + frame(7, api_key=METADATA)
    for cut in (1, 25, 28, 30, 31, 40, len(sent)):
        async with connected() as old:
            await old.client.send(sent[:cut])
            await old.client.send(sent[cut:])
            assert struct.unpack_from(">h", (await old.client.reply())[1]) == (0,)
            assert await old.client.reader.readexactly(4) == b"\0\0\0\0"
            assert (await old.client.reply())[0] == 7


@pytest.mark.parametrize("message", [b"\0alice\0no", b"", b"\0", b"\xff" * 100, frame(2, api_key=METADATA)])
async def test_a_failure_closes_the_connection_without_an_answer(message: bytes) -> None:
    world = World(connection_failed_authentication_delay_ms=0)
    async with connected(world) as old:
        assert await old.handshake("PLAIN") == 0
        await old.client.send(struct.pack(">i", len(message)) + message, frame(8, api_key=METADATA))
        assert await old.client.ended() == b""
    assert world.registry.get_sample_value(
        "headrace_authentications_total", {"listener": "SASL_PLAINTEXT", "mechanism": "PLAIN", "result": "failed"}
    )
    assert any('"authentication"' in line for line in world.audited)


@pytest.mark.parametrize("size", [-1, UNKNOWN_FRAME_BYTES + 1, 2**31 - 1])
async def test_the_length_of_a_token_has_the_limit_of_a_message(size: int) -> None:
    async with connected() as old:
        assert await old.handshake("PLAIN") == 0
        await old.client.send(struct.pack(">i", size))
        assert await old.client.ended() == b""


async def test_requests_between_the_tokens_are_not_served() -> None:
    async with connected() as old:
        login = ScramClient("SCRAM-SHA-256", "alice", "pw")
        assert await old.handshake("SCRAM-SHA-256") == 0
        await old.token(login.first())
        await old.client.send(frame(7, api_key=METADATA))
        assert await old.client.ended() == b"", "the frame is a token, and no proof"


async def test_an_unsupported_mechanism_has_an_error_code_and_no_tokens() -> None:
    async with connected() as old:
        assert await old.handshake("GSSAPI") == UNSUPPORTED
        await old.scram("SCRAM-SHA-256")
        assert await old.is_served()


async def test_no_second_authentication_by_tokens() -> None:
    """KIP-368: only version 1 has it."""
    async with connected() as old:
        await old.scram("SCRAM-SHA-256")
        assert await old.handshake("SCRAM-SHA-256") == ILLEGAL_STATE
        assert await old.is_served()
        assert await old.handshake("SCRAM-SHA-256", version=1) == 0


@pytest.mark.parametrize("seed", range(10))
async def test_any_bytes_end_the_connection_and_let_no_client_in(seed: int) -> None:
    """X7."""
    rng = random.Random(seed)
    async with connected() as old:
        mechanism = rng.choice(["PLAIN", *DIGESTS])
        assert await old.handshake(mechanism) == 0
        for _ in range(rng.randint(1, 4)):
            message = rng.randbytes(rng.choice([0, 1, 5, 40, 3_000]))
            await old.client.send(struct.pack(">i", len(message)) + message)
        await old.client.send(frame(8, api_key=METADATA))
        old.client.writer.write_eof()
        assert await old.client.ended() == b""
