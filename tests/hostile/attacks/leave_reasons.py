"""LeaveGroup with 9,900 members and a reason of 800 control characters for each, from three connections."""

from __future__ import annotations

import asyncio
import contextlib
import struct

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import request
from tests.hostile.second_listener import exchange

SETTINGS = {"log.level": "info"}
CONNECTIONS, SECONDS, MEMBERS = 3, 15.0, 9_900
LEAVE_GROUP, VERSION = 13, 5


def leave(members: int, reason: bytes) -> bytes:
    """The request, of members that the group does not have."""
    each = b"".join(_compact(b"m%d" % number) + b"\0" + _compact(reason) + b"\0" for number in range(members))
    body = _compact(b"group") + _varint(members + 1) + each + b"\0"
    return request(LEAVE_GROUP, VERSION, body, flexible=True)


async def attack(target: AttackedAgent) -> str:
    """Each connection sends one after another."""
    frame, before, sent = leave(MEMBERS, b"\x01" * 800), target.log.stat().st_size, 0

    async def send() -> None:
        nonlocal sent
        reader, writer = await asyncio.open_connection(*target.kafka, limit=1 << 26)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await exchange(reader, writer, frame)
                sent += 1

    tasks = [asyncio.create_task(send()) for _ in range(CONNECTIONS)]
    await asyncio.sleep(SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    written = (target.log.stat().st_size - before) / 1e6
    return f"{sent} requests of {len(frame) / 1e6:.0f} MB, {written:.1f} MB of log"


def _compact(data: bytes) -> bytes:
    return _varint(len(data) + 1) + data


def _varint(number: int) -> bytes:
    found = b""
    while number >= 0x80:
        found += struct.pack(">B", number & 0x7F | 0x80)
        number >>= 7
    return found + struct.pack(">B", number)
