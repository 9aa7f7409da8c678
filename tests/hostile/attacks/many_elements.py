"""Requests of a few megabytes with a million array elements and more."""

from __future__ import annotations

import struct

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import ask, request, text

MIB = 1024 * 1024
_DELETE_TOPICS, _CREATE_TOPICS, _METADATA, _DESCRIBE_GROUPS = 20, 19, 3, 15
_ANSWER_SECONDS = 120.0


def empty_names(size: int) -> bytes:
    """An array of `size` bytes of empty strings."""
    return struct.pack(">i", size // 2) + bytes(size)


def requests() -> dict[str, bytes]:
    """Return the requests by name."""
    names = b"".join(text(f"{number:06}") for number in range(250_000))
    creations = b"".join(text(f"{n:06}") + struct.pack(">ihii", 1, 1, 0, 0) for n in range(90_000))
    return {
        "2 MB DeleteTopics": request(_DELETE_TOPICS, 1, empty_names(2 * MIB) + bytes(4)),
        "2 MB Metadata": request(_METADATA, 1, struct.pack(">i", 250_000) + names),
        "2 MB DescribeGroups": request(_DESCRIBE_GROUPS, 0, struct.pack(">i", 250_000) + names),
        "2 MB CreateTopics": request(_CREATE_TOPICS, 2, struct.pack(">i", 90_000) + creations + bytes(5)),
        "20 MB Metadata": request(_METADATA, 1, empty_names(20 * MIB)),
    }


async def attack(target: AttackedAgent) -> str:
    """One request after another."""
    answered = [name for name, frame in requests().items() if await ask(*target.kafka, frame, _ANSWER_SECONDS)]
    return f"answered: {', '.join(answered) or 'none'}"
