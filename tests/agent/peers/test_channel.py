"""What all channels between agents have in common: seals, limits in time, and errors that name their channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headrace.agent.peers import health_reports as health
from headrace.agent.peers import zone_cache_wire as zone_cache
from headrace.agent.peers.channel import (
    FORWARDING,
    PEER_HEALTH,
    SEAL_BYTES,
    WINDOW_MS,
    ZONE_CACHE,
    Channel,
    framed,
    seal,
)
from headrace.agent.peers.connection import open_connection
from headrace.agent.peers.forwarding import wire as forwarding
from headrace.protocol.request import CloseConnection
from headrace.storage.errors import CorruptError, HeadraceError, InvalidError, UnavailableError

SECRET, SEAL = b"s" * 32, b"m" * SEAL_BYTES
NOTHING = memoryview(b"")
SHORT = memoryview(b"short")
ASK = memoryview(bytes(SEAL_BYTES + 60))


@pytest.mark.parametrize(
    ("channel", "read"),
    [
        (FORWARDING, lambda: forwarding.decode_opening(SHORT, SECRET)),
        (FORWARDING, lambda: forwarding.decode_opening(ASK, SECRET)),
        (FORWARDING, lambda: forwarding.decode_opened(SHORT, SECRET, SEAL)),
        (FORWARDING, lambda: forwarding.decode_opened(memoryview(bytes(54)), SECRET, SEAL)),
        (FORWARDING, lambda: forwarding.decode_envelope(SHORT, SECRET, 1)),
        (FORWARDING, lambda: forwarding.decode_envelope(memoryview(seal(SECRET, b">\0\0\0\1")), SECRET, 1)),
        (FORWARDING, lambda: forwarding.decode_answer(SHORT, SECRET, 1)),
        (FORWARDING, lambda: forwarding.decode_answer(memoryview(bytes(40)), SECRET, 1)),
        (ZONE_CACHE, lambda: zone_cache.decode_ask(SHORT, SECRET)),
        (ZONE_CACHE, lambda: zone_cache.decode_ask(memoryview(seal(SECRET, b"")), SECRET)),
        (ZONE_CACHE, lambda: zone_cache.decode_ask(memoryview(bytes(1 << 20)), SECRET)),
        (ZONE_CACHE, lambda: zone_cache.decode_answer(SHORT, SECRET, SEAL, [])),
        (ZONE_CACHE, lambda: zone_cache.decode_answer(memoryview(bytes(40)), SECRET, SEAL, [])),
        (PEER_HEALTH, lambda: health.decode_question(SHORT, SECRET)),
        (PEER_HEALTH, lambda: health.decode_question(memoryview(bytes(48)), SECRET)),
        (PEER_HEALTH, lambda: health.decode_answer(SHORT, SECRET, SEAL)),
        (PEER_HEALTH, lambda: health.decode_answer(memoryview(bytes(37)), SECRET, SEAL)),
    ],
)
def test_what_cannot_be_read_names_its_channel(channel: Channel, read: Callable[[], object]) -> None:
    with pytest.raises(HeadraceError, match=f"^{channel.name}: ") as refused:
        read()
    assert isinstance(refused.value, InvalidError | CorruptError)


@pytest.mark.parametrize("channel", [FORWARDING, ZONE_CACHE, PEER_HEALTH])
async def test_a_failed_connection_names_its_channel(channel: Channel) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = await open_connection(channel, "127.0.0.1", port)
    with pytest.raises(UnavailableError, match=f"^{channel.name}: connection lost"):
        await connection.ask(connection.next_id(), b"request", 100)
    with pytest.raises(UnavailableError, match=f"^{channel.name}: connection closed"):
        await connection.ask(connection.next_id(), b"request", 100)
    server.close()
    await server.wait_closed()
    with pytest.raises(UnavailableError, match=f"^{channel.name}: cannot connect: host=127.0.0.1 port={port}"):
        await open_connection(channel, "127.0.0.1", port)


def test_a_request_is_for_this_agent_and_from_the_last_minute() -> None:
    FORWARDING.check_version(2, 2)
    with pytest.raises(CloseConnection, match="forwarding: unsupported version: version=1"):
        FORWARDING.check_version(1, 2)
    for sent_ms in (-WINDOW_MS, 0, WINDOW_MS):
        ZONE_CACHE.check_addressee(3, 3, sent_ms, 0)
        for asked, off in ((4, 0), (3, 2 * WINDOW_MS + 1), (3, -2 * WINDOW_MS - 1)):
            with pytest.raises(CloseConnection, match="zone cache: not for this agent, or stale: asked="):
                ZONE_CACHE.check_addressee(asked, 3, sent_ms + off, 0)


def test_a_seal_is_of_all_parts_as_one_text_and_of_its_key() -> None:
    assert seal(SECRET, b"ab", b"", b"c") == seal(SECRET, b"abc") == seal(SECRET, b"a", memoryview(b"bc"))
    assert len({seal(SECRET, b"abc"), seal(SECRET, b"xyz"), seal(SEAL, b"abc")}) == 3
    body = memoryview(seal(SECRET, b">", b"text") + b"text")
    assert ZONE_CACHE.unsealed(body, SECRET, b">", refusal="") == (b"text", seal(SECRET, b">text"))
    for key, before in ((SECRET, b"<"), (SEAL, b">")):
        with pytest.raises(InvalidError, match="zone cache: foreign"):
            ZONE_CACHE.unsealed(body, key, before, refusal="foreign")
    with pytest.raises(InvalidError):
        ZONE_CACHE.unsealed(NOTHING, SECRET, refusal="")


def test_a_frame_has_its_length_and_no_client_id() -> None:
    assert framed(31_299, 1, 7, b"body") == bytes.fromhex("0000000e 7a43 0001 00000007 ffff") + b"body"
