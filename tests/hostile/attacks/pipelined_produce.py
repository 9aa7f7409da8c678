"""4 connections send 512 Produce requests each without reading an answer: small ones that unpack to 4 MiB each, then
ones with 9,990 partitions of which one has a batch, then ones with 9,990 unknown partitions."""

from __future__ import annotations

import asyncio
import struct

from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec
from tests.hostile.attacked_agent import AttackedAgent
from tests.hostile.frames import METADATA, PRODUCE, ask, request, text

CONNECTIONS, REQUESTS, PARTITIONS = 4, 512, 9_990
_TOPIC = "pipelined"
_UNPACKED_BYTES = 4 * 1024 * 1024 - 1024
_HOLD_SECONDS = 10.0


def small(number: int) -> bytes:
    """A request with a valid batch: one record of zeros, about 500 bytes."""
    batch = encode_batch([Record(0, 1_700_000_000_000, None, bytes(_UNPACKED_BYTES))], base_offset=0, codec=Codec.ZSTD)
    return _produce(number, [(0, batch)])


def wide(number: int, index: int) -> bytes:
    """A request of one batch, and many partitions without one."""
    batch = encode_batch([Record(0, 1_700_000_000_000, None, b"v")], base_offset=0)
    return _produce(number, [(0, batch), *((index, None) for _ in range(PARTITIONS - 1))])


def _produce(number: int, partitions: list[tuple[int, bytes | None]]) -> bytes:
    body = [struct.pack(">hhii", -1, -1, 30_000, 1) + text(_TOPIC) + struct.pack(">i", len(partitions))]
    body += [
        struct.pack(">ii", index, -1) if batch is None else struct.pack(">ii", index, len(batch)) + batch
        for index, batch in partitions
    ]
    return request(PRODUCE, 7, b"".join(body), correlation_id=number)


async def _flood(connection: asyncio.StreamWriter, frame: bytes, sent: list[int], number: int) -> None:
    for _ in range(REQUESTS):
        connection.write(frame)
        await connection.drain()  # all at once would stop this process, and with it what measures the stall
        sent[number] += 1


async def attack(target: AttackedAgent) -> str:
    """One kind after the other, each on other connections."""
    await ask(*target.kafka, request(METADATA, 1, struct.pack(">i", 1) + text(_TOPIC)))
    lines = []
    kinds = {"small": small(1), "wide": wide(1, 0), "of unknown partitions": wide(1, 5_000)}
    for name, frame in kinds.items():
        opened = [await asyncio.open_connection(*target.kafka, limit=1) for _ in range(CONNECTIONS)]
        sent = [0] * CONNECTIONS
        floods = [asyncio.create_task(_flood(writer, frame, sent, number)) for number, (_, writer) in enumerate(opened)]
        await asyncio.wait(floods, timeout=_HOLD_SECONDS)
        await asyncio.sleep(_HOLD_SECONDS / 2)
        for flood in floods:
            flood.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        lines.append(f"{name}: {REQUESTS - sum(sent) / CONNECTIONS:.0f} of {REQUESTS} each were not sent yet")
        for _, writer in opened:
            writer.transport.abort()
    return "; ".join(lines)
