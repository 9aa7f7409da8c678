"""Reads a topic from offset 0 as fast as it is served: raw Fetch v4, record bytes dropped.

Runs as a separate process, so that it costs the agent only its requests. Prints `ready`, reads
from the first line of its input on, then prints one JSON object: bytes, seconds. It reads the topic again and
again until its input ends, or just `once`.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from typing import Any

VERSION = 4
PARTITION_BYTES = 8 * 1024 * 1024
RESPONSE_BYTES = 50 * 1024 * 1024
_BATCH = struct.Struct(">qi11xi")
"""Base offset, batch length, last offset delta."""


class BackfillConnection:
    """One connection that reads some of the partitions."""

    def __init__(self, topic: str, partitions: list[int], *, once: bool) -> None:
        self._topic = topic.encode()
        self._offsets = dict.fromkeys(partitions, 0)
        self._once = once
        self.bytes = 0

    async def read(self, host: str, port: int) -> None:
        """Read until cancelled, or each partition was read once."""
        reader, writer = await asyncio.open_connection(host, port, limit=4 << 20)
        while self._offsets:
            writer.write(self._request())
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            self._take(memoryview(await reader.readexactly(size)))

    def _request(self) -> bytes:
        wanted = b"".join(struct.pack(">iqi", p, offset, PARTITION_BYTES) for p, offset in self._offsets.items())
        body = struct.pack(">hhih", 1, VERSION, 0, -1) + struct.pack(">iiiib", -1, 500, 1, RESPONSE_BYTES, 0)
        body += struct.pack(">ih", 1, len(self._topic)) + self._topic + struct.pack(">i", len(self._offsets)) + wanted
        return struct.pack(">i", len(body)) + body

    def _take(self, body: memoryview) -> None:
        at = 4 + 4 + 4 + 2 + len(self._topic)
        (count,) = struct.unpack_from(">i", body, at)
        at += 4
        for _ in range(count):
            partition, error, high_watermark, _, aborted, size = struct.unpack_from(">ihqqii", body, at)
            at += 30
            if error or aborted > 0:
                raise RuntimeError(f"fetch failed: partition={partition} error={error}")
            self._advance(partition, body[at : at + size], high_watermark)
            at += size

    def _advance(self, partition: int, records: memoryview, high_watermark: int) -> None:
        self.bytes += len(records)
        at, offset = 0, self._offsets[partition]
        while at + _BATCH.size <= len(records):
            base, length, delta = _BATCH.unpack_from(records, at)
            offset = base + delta + 1
            at += 12 + length
        self._offsets[partition] = 0 if offset >= high_watermark else offset
        if self._once and offset >= high_watermark:
            del self._offsets[partition]


async def run(port: int, topic: str, partitions: int, connections: int, *, once: bool) -> None:
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    readers = [
        BackfillConnection(topic, list(range(n, partitions, connections)), once=once) for n in range(connections)
    ]
    started = time.monotonic()
    tasks: list[asyncio.Future[Any]] = [asyncio.create_task(reader.read("127.0.0.1", port)) for reader in readers]
    if once:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    else:
        over = loop.run_in_executor(None, sys.stdin.read)
        done, _ = await asyncio.wait([*tasks, over], return_when=asyncio.FIRST_COMPLETED)
    seconds = time.monotonic() - started
    for task in tasks:
        if task in done:
            task.result()
        task.cancel()
    json.dump({"bytes": sum(reader.bytes for reader in readers), "seconds": seconds}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), once=sys.argv[5:] == ["once"]))
