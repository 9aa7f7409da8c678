"""Hundreds of producers that send one record per batch: prepared Produce v9 frames over raw connections.

Runs as a separate process (`python -m load.workloads.producer --help`) and prints one JSON object, so
that tests/hostile/many_producers.py can count the agent's CPU alone. Each producer has a separate connection; each of
its requests carries one batch for every partition. A record's value opens with the monotonic clock (ns)
at which it was sent: a reader on the same machine knows its age.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field

from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.header import CRC_START, HEADER_BYTES, batch_crc
from load.workloads.raw_producer import TIMEOUT_MS, VERSION

VALUE_BYTES = 100
INFLIGHT_MAX = 5
STAMP = struct.Struct(">q")
_VALUE_OFFSET = HEADER_BYTES + 8
"""Offset at which the value begins: after length (2 bytes), attributes, two deltas, no key, value length (2 bytes)."""


@dataclass
class HostileWorkload:
    """What to send. `rate` in requests/s over all producers; ids from `first_producer_id` on, -1: not idempotent."""

    port: int
    topic: str
    partitions: int
    producers: int
    seconds: float
    rate: float
    first_producer_id: int
    latencies: list[float] = field(default_factory=list)
    requests: int = 0
    errors: dict[int, int] = field(default_factory=dict)


class Frames:
    """One producer's requests."""

    def __init__(self, workload: HostileWorkload, producer_id: int) -> None:
        epoch = 0 if producer_id >= 0 else -1
        record = Record(0, time.time_ns() // 1_000_000, None, bytes(VALUE_BYTES))
        self._batch = bytearray(
            encode_batch([record], base_offset=0, producer_id=producer_id, producer_epoch=epoch, base_sequence=-1)
        )
        self._idempotent = producer_id >= 0
        self._sequence = 0
        topic = workload.topic.encode()
        self._head = struct.pack(">hhih", 0, VERSION, 0, 3) + b"raw\x00\x00" + struct.pack(">hi", -1, TIMEOUT_MS)
        self._head += b"\x02" + bytes((len(topic) + 1,)) + topic + bytes((workload.partitions + 1,))
        size = len(self._batch) + 1
        length = bytes((size & 0x7F | 0x80, size >> 7))
        self._openings = [struct.pack(">i", partition) + length for partition in range(workload.partitions)]

    def next(self) -> bytes:
        """The next request, length prefix included."""
        STAMP.pack_into(self._batch, _VALUE_OFFSET, time.monotonic_ns())
        if self._idempotent:
            struct.pack_into(">i", self._batch, HEADER_BYTES - 8, self._sequence)
            self._sequence += 1
        struct.pack_into(">I", self._batch, CRC_START - 4, batch_crc(memoryview(self._batch)))
        batch = bytes(self._batch) + b"\x00"
        body = b"".join((self._head, *(part for opening in self._openings for part in (opening, batch)), b"\x00\x00"))
        return struct.pack(">i", len(body)) + body


async def _produce(workload: HostileWorkload, producer_id: int, start_after: float) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", workload.port, limit=1 << 20)
    frames = Frames(workload, producer_id)
    sent: deque[float] = deque()
    slots = asyncio.Semaphore(INFLIGHT_MAX)
    loop = asyncio.get_running_loop()
    first_error = 4 + 1 + 1 + 1 + len(workload.topic) + 1 + 4

    async def receive() -> None:
        while True:
            (size,) = STAMP_LENGTH.unpack(await reader.readexactly(4))
            body = await reader.readexactly(size)
            (code,) = struct.unpack_from(">h", body, first_error)
            if code:
                workload.errors[code] = workload.errors.get(code, 0) + 1
            workload.latencies.append(time.monotonic() - sent.popleft())
            workload.requests += 1
            slots.release()

    receiving = asyncio.create_task(receive())
    pause = workload.producers / workload.rate
    due = loop.time() + start_after
    until = due + workload.seconds
    while due < until and not receiving.done():
        await asyncio.sleep(max(0.0, due - loop.time()))
        await slots.acquire()
        sent.append(time.monotonic())
        writer.write(frames.next())
        due += pause
    for _ in range(INFLIGHT_MAX):
        await asyncio.wait_for(slots.acquire(), 60)
    receiving.cancel()
    writer.close()


STAMP_LENGTH = struct.Struct(">i")


async def run(workload: HostileWorkload) -> dict[str, object]:
    """Send until the time is up; the summary that `main` prints."""
    first = workload.first_producer_id
    rng = random.Random(1)
    started = time.monotonic()
    spread = workload.producers / workload.rate
    await asyncio.gather(
        *(_produce(workload, first + n if first >= 0 else -1, rng.random() * spread) for n in range(workload.producers))
    )
    return {
        "requests": workload.requests,
        "batches": workload.requests * workload.partitions,
        "seconds": time.monotonic() - started,
        "errors": workload.errors,
        "latencies": workload.latencies,
    }


def main() -> None:
    """Parse flags, run, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--producers", type=int, default=240)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, default=400)
    parser.add_argument("--first-producer-id", type=int, default=-1)
    json.dump(asyncio.run(run(HostileWorkload(**vars(parser.parse_args())))), sys.stdout)


if __name__ == "__main__":
    main()
