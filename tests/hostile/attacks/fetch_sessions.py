"""60 fetch sessions with 9,900 partitions each, and 3,000 small ones."""

from __future__ import annotations

import struct

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import FETCH, ask, request, text

_VERSION = 7


def session(partitions: int) -> bytes:
    """A request that starts a session with so many partitions."""
    body = struct.pack(">iiiibiii", -1, 0, 1, 1 << 20, 0, 0, 0, 1) + text("no-such-topic")
    body += struct.pack(">i", partitions)
    body += b"".join(struct.pack(">iqqi", index, 0, 0, 1 << 20) for index in range(partitions))
    return request(FETCH, _VERSION, body + struct.pack(">i", 0))


async def attack(target: AttackedAgent) -> str:
    """Each on a separate connection, and never used again."""
    large, small, opened = session(9_900), session(1), 0
    for frame in [large] * 60 + [small] * 3_000:
        answer = await ask(*target.kafka, frame, 30.0)
        opened += bool(answer) and struct.unpack_from(">i", answer, 10)[0] > 0
    return f"{opened} sessions were opened"
