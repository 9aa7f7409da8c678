"""An opening of a link between agents, seen on the network, is sent again on many connections, each with much data.

A link may send 8 MB in one frame, has any number of requests in flight and no quota; another connection has none of
this. The opening is made with the cluster's secret, as the agent that was listened to made it.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time

import psycopg

from headrace.agent.peers.channel import ENVELOPE_KEY
from headrace.agent.peers.forwarding.wire import NEWEST_ENVELOPE, NONCE_BYTES, Opening, encode_opening
from tests.hostile.attacked_agent import AttackedAgent

_CONNECTIONS = 32
_FRAME_BYTES = 7 * 1024 * 1024
_OTHER_AGENT = 77


def opening(secret: bytes, asked: int) -> bytes:
    """The frame, as an agent sends it to the agent with this node id."""
    nonce = random.Random(1).randbytes(NONCE_BYTES)
    return encode_opening(Opening(int(time.time() * 1000), _OTHER_AGENT, asked, NEWEST_ENVELOPE, nonce), secret, 1)[0]


def large_frame() -> bytes:
    """An envelope without a valid MAC, all but its last byte."""
    head = struct.pack(">hhih", ENVELOPE_KEY, NEWEST_ENVELOPE, 2, -1)
    return struct.pack(">i", _FRAME_BYTES) + head + bytes(_FRAME_BYTES - len(head) - 1)


async def attack(target: AttackedAgent) -> str:
    """Return how many openings were answered, and how many of these connections could send megabytes."""
    with psycopg.connect(target.metastore_url) as connection:
        row = connection.execute("SELECT zone_secret FROM cluster").fetchone()
    assert row is not None
    frame, data = opening(bytes(row[0]), 1), large_frame()
    outcomes = await asyncio.gather(*(_repeat(target, frame, data) for _ in range(_CONNECTIONS)))
    answered, kept = (sum(each[field] for each in outcomes) for field in (0, 1))
    return f"{answered} of {_CONNECTIONS} openings that were sent again were answered, {kept} connections sent 7 MB"


async def _repeat(target: AttackedAgent, frame: bytes, data: bytes) -> tuple[bool, bool]:
    reader, writer = await asyncio.open_connection(*target.kafka)
    try:
        writer.write(frame)
        async with asyncio.timeout(30):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(size)
            writer.write(data)
            await writer.drain()
            try:
                async with asyncio.timeout(3):
                    return True, bool(await reader.read(1))
            except TimeoutError:
                return True, True
    except asyncio.IncompleteReadError:
        return False, False
    except OSError:
        return True, False
    finally:
        writer.close()
