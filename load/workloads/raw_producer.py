"""A load generator that costs little itself: prepared Produce v9 frames over raw connections.

Runs as a separate process (`python -m load.workloads.raw_producer --help`) and prints one JSON object, so
that a benchmark can count the agent's CPU alone. Each request carries one batch for one partition,
partitions in turn; each answer's error code is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field

from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.header import CRC_START, batch_crc

VERSION = 9
TIMEOUT_MS = 30_000
RECORD_BYTES = 1_000


@dataclass
class ProduceWorkload:
    """What to send. `rate` in requests/s over all connections, 0 for as fast as answers allow."""

    host: str
    port: int
    topic: str
    partitions: int
    request_bytes: int
    connections: int
    inflight: int
    seconds: float
    rate: float
    first_producer_id: int
    latencies: list[float] = field(default_factory=list)
    requests: int = 0
    errors: dict[int, int] = field(default_factory=dict)


class Sequenced:
    """Frames of one connection; with a producer id each batch gets its partition's next sequence."""

    def __init__(self, workload: ProduceWorkload, producer_id: int) -> None:
        count = max(1, workload.request_bytes // RECORD_BYTES)
        value = os.urandom(max(1, workload.request_bytes // count - 12))
        now = time.time_ns() // 1_000_000
        records = [Record(n, now, None, value) for n in range(count)]
        epoch, sequence = (0, 0) if producer_id >= 0 else (-1, -1)
        self._batch = bytearray(
            encode_batch(records, base_offset=0, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        )
        self._idempotent = producer_id >= 0
        self._records = count
        self._topic = workload.topic.encode()
        self._next = [0] * workload.partitions
        self._partition = 0
        self.batch_bytes = len(self._batch)

    def frame(self) -> bytes:
        """The next request, length prefix included."""
        partition = self._partition
        self._partition = (partition + 1) % len(self._next)
        if self._idempotent:
            struct.pack_into(">i", self._batch, 53, self._next[partition])
            struct.pack_into(">I", self._batch, CRC_START - 4, batch_crc(memoryview(self._batch)))
            self._next[partition] += self._records
        size = len(self._batch) + 1
        head = struct.pack(">hhih", 0, VERSION, 0, 3) + b"raw\x00"
        head += b"\x00" + struct.pack(">hi", -1, TIMEOUT_MS) + b"\x02"
        head += _varint(len(self._topic) + 1) + self._topic + b"\x02" + struct.pack(">i", partition) + _varint(size)
        tail = b"\x00\x00\x00"
        return struct.pack(">i", len(head) + len(self._batch) + len(tail)) + head + bytes(self._batch) + tail


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


async def _connection(workload: ProduceWorkload, producer_id: int) -> None:
    reader, writer = await asyncio.open_connection(workload.host, workload.port, limit=1 << 20)
    frames = Sequenced(workload, producer_id)
    error_at = 4 + 1 + 1 + len(_varint(len(workload.topic) + 1)) + len(workload.topic) + 1 + 4
    sent: deque[float] = deque()
    slots = asyncio.Semaphore(workload.inflight)
    loop = asyncio.get_running_loop()
    until = loop.time() + workload.seconds
    pause = workload.connections / workload.rate if workload.rate else 0.0

    async def receive() -> None:
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            body = await reader.readexactly(size)
            (code,) = struct.unpack_from(">h", body, error_at)
            if code:
                workload.errors[code] = workload.errors.get(code, 0) + 1
            workload.latencies.append(time.monotonic() - sent.popleft())
            workload.requests += 1
            slots.release()

    receiving = asyncio.create_task(receive())
    due = loop.time()
    while loop.time() < until and not receiving.done():
        await slots.acquire()
        if pause:
            due += pause
            await asyncio.sleep(max(0.0, due - loop.time()))
        sent.append(time.monotonic())
        writer.write(frames.frame())
        await writer.drain()
    for _ in range(workload.inflight):
        await asyncio.wait_for(slots.acquire(), 60)
    receiving.cancel()
    writer.close()


async def run(workload: ProduceWorkload) -> dict[str, object]:
    """Send until the time is up; the summary that `main` prints."""
    started = time.monotonic()
    ids = [
        workload.first_producer_id + n if workload.first_producer_id >= 0 else -1 for n in range(workload.connections)
    ]
    await asyncio.gather(*(_connection(workload, producer_id) for producer_id in ids))
    batch_bytes = Sequenced(workload, -1).batch_bytes
    return {
        "requests": workload.requests,
        "bytes": workload.requests * batch_bytes,
        "seconds": time.monotonic() - started,
        "errors": workload.errors,
        "latencies": workload.latencies,
    }


def main() -> None:
    """Parse flags, run, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--request-bytes", type=int, default=65_536)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--inflight", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--first-producer-id", type=int, default=-1, help="idempotent from this id on; -1: not")
    json.dump(asyncio.run(run(ProduceWorkload(**vars(parser.parse_args())))), sys.stdout)


if __name__ == "__main__":
    main()
