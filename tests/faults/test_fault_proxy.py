"""The fault proxy of the torture run: what each of its faults does to a connection.

Fault model: tests/torture/proxy.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from tests.torture.proxy import FaultProxy

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def echo() -> AsyncIterator[tuple[FaultProxy, list[bytes]]]:
    """A proxy in front of a server that repeats what it hears, and what it heard."""
    heard: list[bytes] = []

    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1_000):
            heard.append(data)
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(repeat, "127.0.0.1", 0)
    proxy = FaultProxy(random.Random(1))
    await proxy.start()
    proxy.target = server.sockets[0].getsockname()[1]
    yield proxy, heard
    await proxy.close()
    server.close()


async def _connect(proxy: FaultProxy) -> Ends:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def _ask(ends: Ends, text: bytes) -> bytes:
    ends[1].write(text)
    return await asyncio.wait_for(ends[0].readexactly(len(text)), 60)


async def _opened(proxy: FaultProxy, fault: str, seconds: float = 3600) -> asyncio.Task[None]:
    task = asyncio.create_task(proxy.window(fault, seconds))
    await asyncio.sleep(0)
    return task


async def test_without_a_fault_bytes_pass_both_ways(echo: tuple[FaultProxy, list[bytes]]) -> None:
    ends = await _connect(echo[0])
    assert await _ask(ends, b"one") == b"one"
    ends[1].write_eof()
    assert await ends[0].read() == b""


async def test_a_reset_ends_what_is_open_and_nothing_that_comes_later(echo: tuple[FaultProxy, list[bytes]]) -> None:
    ends = await _connect(echo[0])
    await _ask(ends, b"one")
    echo[0].reset()
    with pytest.raises(ConnectionResetError):
        await ends[0].readexactly(1)
    assert await _ask(await _connect(echo[0]), b"two") == b"two"


async def test_mute_lets_the_request_through_and_never_the_reply(echo: tuple[FaultProxy, list[bytes]]) -> None:
    proxy, heard = echo
    ends = await _connect(proxy)
    await _ask(ends, b"one")
    window = asyncio.create_task(proxy.window("mute", 0.2))
    await asyncio.sleep(0)
    ends[1].write(b"two")
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await ends[0].readexactly(1)
    await window
    assert heard == [b"one", b"two"]


async def test_half_open_carries_nothing_then_or_later_and_closes_nothing(
    echo: tuple[FaultProxy, list[bytes]],
) -> None:
    proxy, heard = echo
    ends = await _connect(proxy)
    await _ask(ends, b"one")
    await proxy.window("half_open", 0.0)
    ends[1].write(b"two")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ends[0].read(1), 0.1)
    assert heard == [b"one"]
    assert await _ask(await _connect(proxy), b"three") == b"three"


async def test_a_cut_delivers_less_than_was_sent_and_resets(echo: tuple[FaultProxy, list[bytes]]) -> None:
    proxy, heard = echo
    ends = await _connect(proxy)
    await _ask(ends, b"one")
    window = await _opened(proxy, "cut")
    ends[1].write(b"x" * 1_000)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await ends[0].readexactly(1_000)
    assert sum(map(len, heard)) < 3 + 1_000
    window.cancel()


async def test_a_delay_keeps_every_byte_in_order(echo: tuple[FaultProxy, list[bytes]]) -> None:
    ends = await _connect(echo[0])
    window = await _opened(echo[0], "delay")
    assert await _ask(ends, b"slow") == b"slow"
    window.cancel()


async def test_without_a_target_no_connection_is_accepted(echo: tuple[FaultProxy, list[bytes]]) -> None:
    echo[0].target = 0
    reader, _ = await _connect(echo[0])
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)


async def test_slow_down_answers_each_request_itself_and_a_body_under_way_passes(
    echo: tuple[FaultProxy, list[bytes]],
) -> None:
    begun = await _connect(echo[0])
    assert await _ask(begun, b"PUT /a HTTP/1.1\r\n") == b"PUT /a HTTP/1.1\r\n"
    task = await _opened(echo[0], "slow_down")
    assert await _ask(begun, b"its body") == b"its body"
    refused = await _connect(echo[0])
    refused[1].write(b"GET /b HTTP/1.1\r\n\r\n")
    answer = await asyncio.wait_for(refused[0].readuntil(b"</Error>"), 60)
    assert answer.startswith(b"HTTP/1.1 503 Slow Down\r\n")
    assert b"<Code>SlowDown</Code>" in answer
    refused[1].write(b"more of it")
    refused[1].write_eof()
    assert await asyncio.wait_for(refused[0].read(), 60) == b""
    assert echo[1] == [b"PUT /a HTTP/1.1\r\n", b"its body"], "the server got nothing of what was refused"
    task.cancel()


async def test_only_bodies_of_ranged_answers_are_altered() -> None:
    """The same chunk is altered again and again, each time in another way; heads and other answers pass."""
    head, body = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 400\r\n\r\n", bytes(200)
    answers = (head + body, body, b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n" + body)
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1):
            writer.write(left.pop(0))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    proxy = FaultProxy(random.Random(2))
    await proxy.start()
    proxy.target = server.sockets[0].getsockname()[1]
    proxy.fault = "alter"
    reader, writer = await _connect(proxy)
    got = []
    for expected in answers:
        writer.write(b"?")
        got.append(await asyncio.wait_for(reader.readexactly(len(expected)), 60))
    proxy.fault = ""
    await proxy.close()
    server.close()
    assert got[0].startswith(head)
    assert got[0][len(head) :] != body or got[1] != body
    assert got[2].endswith(b"\r\n\r\n" + body)
