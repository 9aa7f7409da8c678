"""3,000 failed logins with long names that are all different, and 1,000 TLS handshakes that fail: what the log gets."""

from __future__ import annotations

import asyncio
import contextlib
import struct

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import request
from tests.hostile.second_listener import (
    ATTACKER,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SecondListener,
    exchange,
)

LOGINS, HANDSHAKES, NAME_BYTES = 3_000, 1_000, 30_000
AT_ONCE = 50
_LISTENER = SecondListener("SASL_SSL")
SETTINGS = _LISTENER.settings | {"log.level": "info", "connection.failed.authentication.delay.ms": 0}


async def attack(target: AttackedAgent) -> str:
    """Some at once."""
    before, room = target.log.stat().st_size, asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with room:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await (_fail(number) if number < LOGINS else _garbage())

    await asyncio.gather(*map(one, range(LOGINS + HANDSHAKES)))
    log = target.log.read_text(errors="replace")
    lines = [line for line in log.splitlines() if "authentication failed" in line or "tls_handshake" in line]
    named = sum("user='user-" in line or f"peer={ATTACKER}" in line for line in lines)
    return f"{len(lines)} lines, {named} with who it was, {(target.log.stat().st_size - before) / 1000:.0f} kB of log"


async def _fail(number: int) -> None:
    reader, writer = await _LISTENER.connect(ATTACKER)
    await exchange(reader, writer, request(SASL_HANDSHAKE, 1, struct.pack(">h5s", 5, b"PLAIN")))
    token = b"\0" + b"user-%d-" % number + b"n" * NAME_BYTES + b"\0"
    await exchange(reader, writer, request(SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token))
    writer.transport.abort()


async def _garbage() -> None:
    reader, writer = await _LISTENER.silent()
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await reader.read()
    writer.close()
