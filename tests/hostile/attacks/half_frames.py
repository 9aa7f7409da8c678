"""40 connections declare 100 MiB of a Metadata or a Produce request, send 12 bytes, and wait."""

from __future__ import annotations

import asyncio
import struct

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import METADATA, PRODUCE, header

CONNECTIONS = 40
DECLARED_BYTES = 100 * 1024 * 1024 - 64
HOLD_SECONDS = 8.0


async def attack(target: AttackedAgent) -> str:
    """Hold the half frames for some seconds."""
    opened = [await asyncio.open_connection(*target.kafka) for _ in range(CONNECTIONS)]
    for number, (_, writer) in enumerate(opened):
        api_key, version = (METADATA, 1) if number % 2 else (PRODUCE, 7)
        writer.write(struct.pack(">i", DECLARED_BYTES) + header(api_key, version)[:12])
    await asyncio.sleep(HOLD_SECONDS)
    closed = sum(reader.at_eof() for reader, _ in opened)
    for _, writer in opened:
        writer.close()
    return f"{closed} of {CONNECTIONS} half frames were closed"
