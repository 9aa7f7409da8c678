"""5,000 groups with a member each, 12,000 without one, and 6,000 topics that are created by asking for them."""

from __future__ import annotations

import asyncio
import struct

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.attacks.large_members import join
from tests.hostile.frames import METADATA, request, text

_OFFSET_FETCH = 9


async def attack(target: AttackedAgent) -> str:
    """Pipelined on one connection per kind."""
    joined = await _pipelined(target, [join(f"many-{number}", 100) for number in range(5_000)])
    empty = [request(_OFFSET_FETCH, 1, text(f"none-{n}") + struct.pack(">i", 0)) for n in range(12_000)]
    asked = await _pipelined(target, empty)
    names = [struct.pack(">i", 100) + b"".join(text(f"many-{n}-{m}") for m in range(100)) for n in range(60)]
    created = await _pipelined(target, [request(METADATA, 4, each + b"\1") for each in names])
    return f"answered: {joined} joins, {asked} requests about groups, {created} of {len(names)} for 100 topics each"


async def _pipelined(target: AttackedAgent, frames: list[bytes]) -> int:
    reader, writer = await asyncio.open_connection(*target.kafka, limit=1 << 22)
    answered = 0
    try:
        async with asyncio.timeout(180):
            for start in range(0, len(frames), 50):
                part = frames[start : start + 50]
                writer.write(b"".join(part))
                for _ in part:
                    await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
                    answered += 1
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        pass
    finally:
        writer.transport.abort()
    return answered
