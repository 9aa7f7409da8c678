"""Members of groups with large subscriptions: 10 of 20 MB, 40 of 7 MB, 200 of 0.9 MB; and 20,000 ids never used."""

from __future__ import annotations

import asyncio
import struct

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import JOIN_GROUP, ask, request, text

_TIMEOUT_MS = 60_000


def join(group: str, metadata: int, version: int = 1) -> bytes:
    """A new member with a subscription of so many bytes."""
    timeouts = struct.pack(">ii", _TIMEOUT_MS, _TIMEOUT_MS)
    protocols = struct.pack(">i", 1) + text("range") + struct.pack(">i", metadata) + bytes(metadata)
    return request(JOIN_GROUP, version, text(group) + timeouts + text("") + text("consumer") + protocols)


async def attack(target: AttackedAgent) -> str:
    """One size after another, each member in a separate group."""
    told = []
    for count, size in ((10, 20_000_000), (40, 7_000_000), (200, 900_000)):
        codes: dict[str, int] = {}
        for number in range(count):
            answer = await ask(*target.kafka, join(f"large-{size}-{number}", size), 30.0)
            code = str(struct.unpack_from(">h", answer, 4)[0]) if answer else "closed"
            codes[code] = codes.get(code, 0) + 1
        told.append(f"{count} of {size / 1e6:.1f} MB: {codes}")
    reader, writer = await asyncio.open_connection(*target.kafka)
    for start in range(0, 20_000, 50):
        writer.write(b"".join(join(f"ids-{start % 1_000}", 10, 4) for _ in range(50)))
        for _ in range(50):
            await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
    writer.close()
    return "error codes by size: " + "; ".join(told)
