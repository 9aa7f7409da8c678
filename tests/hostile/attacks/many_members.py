"""3,000 members in one KIP-848 group, and 3,000 in one classic group, which rebalances as they join."""

from __future__ import annotations

import asyncio
import struct

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.attacks.large_members import join
from tests.hostile.attacks.patterns import compact
from tests.hostile.frames import request

MEMBERS = 3_000
_HEARTBEAT, _CONNECTIONS = 68, 50
_PATIENCE_SECONDS = 60.0


def heartbeat(number: int) -> bytes:
    """Make a heartbeat of a new member that subscribes to one topic."""
    body = compact("many-members") + compact(f"m{number}") + struct.pack(">i", 0) + b"\0\0" + struct.pack(">i", 60_000)
    return request(_HEARTBEAT, 1, body + b"\2" + compact("bystanders") + b"\0" + b"\0" + b"\1" + b"\0", flexible=True)


async def attack(target: AttackedAgent) -> str:
    """Attack through 50 connections each; a classic member's answer may wait for the others."""
    modern = await _send(target, [heartbeat(number) for number in range(MEMBERS)])
    classic = await _send(target, [join("many-classic", 50) for _ in range(MEMBERS)])
    return f"answered: {modern} of {MEMBERS} KIP-848 members, {classic} of {MEMBERS} classic ones"


async def _send(target: AttackedAgent, frames: list[bytes]) -> int:
    parts = [frames[number::_CONNECTIONS] for number in range(_CONNECTIONS)]
    return sum(await asyncio.gather(*(_exchange(target, part) for part in parts)))


async def _exchange(target: AttackedAgent, frames: list[bytes]) -> int:
    reader, writer = await asyncio.open_connection(*target.kafka, limit=1 << 22)
    answered = 0
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            writer.write(b"".join(frames))
            for _ in frames:
                await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
                answered += 1
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        pass
    finally:
        writer.transport.abort()
    return answered
