"""Topic patterns of brackets, up to 16 KB, in heartbeats of KIP-848 consumer groups."""

from __future__ import annotations

import struct

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import ask, request

_HEARTBEAT, _VERSION = 68, 1
PATTERNS = ["()" * 8_000, "(" * 8_000 + ")" * 8_000, "(a)" * 5_000, "(a)" * 1_300, "((a{9}){9}){9}", "(x+x+)+y" * 500]


def compact(value: str) -> bytes:
    """A string with its length as a varint."""
    data, length, head = value.encode(), len(value.encode()) + 1, bytearray()
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(head) + bytes([length]) + data


def heartbeat(number: int, pattern: str) -> bytes:
    """Make a heartbeat of a new member with this subscription."""
    body = compact(f"patterns-{number}") + compact(f"m{number}") + struct.pack(">i", 0) + b"\0\0"
    body += struct.pack(">i", 60_000) + b"\1" + compact(pattern) + b"\0" + b"\1" + b"\0"
    return request(_HEARTBEAT, _VERSION, body, flexible=True)


async def attack(target: AttackedAgent) -> str:
    """Each pattern in 20 groups."""
    answered = 0
    for number in range(20 * len(PATTERNS)):
        answered += bool(await ask(*target.kafka, heartbeat(number, PATTERNS[number % len(PATTERNS)]), 30.0))
    return f"{answered} of {20 * len(PATTERNS)} heartbeats were answered"
