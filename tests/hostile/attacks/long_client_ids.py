"""10,000 connections, each with another client id of 32 KB and a request that cannot be read: each is a line of the log
that the agent could keep to recognize it again."""

from __future__ import annotations

import asyncio

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import METADATA, ask
from tests.hostile.typed_frames import framed_body

_CONNECTIONS, _AT_ONCE = 10_000, 8
CLIENT_ID_BYTES = 32_767


def client_id(number: int) -> str:
    """Letters only: the log's filter leaves out digits. One wide character makes four bytes of each."""
    letters = "".join(chr(ord("a") + number // 26**place % 26) for place in range(4))
    return letters + "\U0001f600" + "\x0f" * (CLIENT_ID_BYTES - len(letters) - 4)


def request_of(number: int) -> bytes:
    """A Metadata request that ends in the middle of its body."""
    return framed_body(METADATA, 1, b"\0\0\0\5\0\7abc", client_id(number))


async def attack(target: AttackedAgent) -> str:
    """Eight connections at a time."""
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> bytes:
        async with free:
            return await ask(*target.kafka, request_of(number), 30.0)

    for start in range(0, _CONNECTIONS, 500):
        await asyncio.gather(*(one(number) for number in range(start, start + 500)))
    lines = target.log.read_text(errors="replace").splitlines()
    return f"{len(lines)} lines in the log, the longest has {max(map(len, lines), default=0):,} characters"
