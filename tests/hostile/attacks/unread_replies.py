"""64 connections send 4 Fetch requests each for a topic with 64 MiB, beyond the cache, and read no reply."""

from __future__ import annotations

import asyncio
import os
import struct

from confluent_kafka import Producer

from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import FETCH, METADATA, ask, request, text

CONNECTIONS, REQUESTS = 64, 4
TOPIC = "unread"
_RECORDS, _RECORD_BYTES = 128, 512 * 1024
_HOLD_SECONDS = 12.0
SETTINGS = {"cache.bytes": 4 * 1024 * 1024}
"""Else the replies would be views of what the cache has anyway."""


def fetch(correlation_id: int) -> bytes:
    """Fetch up to 50 MiB of the topic from its start."""
    most = 50 * 1024 * 1024
    body = struct.pack(">iiiibi", -1, 100, 1, most, 0, 1) + text(TOPIC) + struct.pack(">iiqi", 1, 0, 0, most)
    return request(FETCH, 4, body, correlation_id=correlation_id)


async def prepare(target: AttackedAgent) -> None:
    """Fill the topic, as ordinary clients do."""
    await ask(*target.kafka, request(METADATA, 1, struct.pack(">i", 1) + text(TOPIC)))
    await asyncio.to_thread(_fill, target.bootstrap)


async def attack(target: AttackedAgent) -> str:
    """Fetch it without reading."""
    opened = [await asyncio.open_connection(*target.kafka, limit=1) for _ in range(CONNECTIONS)]
    for _, writer in opened:
        writer.write(b"".join(fetch(number) for number in range(REQUESTS)))
    await asyncio.sleep(_HOLD_SECONDS)
    for _, writer in opened:
        writer.transport.abort()
    return f"{CONNECTIONS * REQUESTS} fetches were not read"


def _fill(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for _ in range(_RECORDS):
        producer.produce(TOPIC, os.urandom(_RECORD_BYTES))
    producer.flush(120)
