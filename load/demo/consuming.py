"""The consumer: an aiokafka group that reads everything back and checks it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer

from load.demo.flights import checksum, row_number

IDLE_SECONDS = 60


@dataclass
class Consumed:
    """What the group saw; latencies in seconds from the producer's timestamp to the poll that returned the record."""

    records: int = 0
    checksum: int = 0
    seen: set[int] = field(default_factory=set)
    duplicates: int = 0
    out_of_order: int = 0
    last_of_key: dict[bytes, int] = field(default_factory=dict)
    end_to_end_seconds: dict[int, float] = field(default_factory=dict)
    """Seconds from end to end by the record's number."""

    def add(self, key: bytes, value: bytes, timestamp_ms: int) -> None:
        """Check one record."""
        number = row_number(value)
        self.records += 1
        self.checksum = checksum(self.checksum, value)
        self.duplicates += number in self.seen
        self.seen.add(number)
        self.out_of_order += self.last_of_key.get(key, -1) > number
        self.last_of_key[key] = number
        self.end_to_end_seconds[number] = time.time() - timestamp_ms / 1000


class Group:
    """`members` consumers of one group; `joined` is set once they share out all partitions."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, members: int) -> None:
        self.joined = asyncio.Event()
        self._partitions = partitions
        self._consumers = [_consumer(bootstrap, topic) for _ in range(members)]

    async def read(self, expected: int, progress: asyncio.Queue[int]) -> Consumed:
        """Read until `expected` records arrived, or none for IDLE_SECONDS."""
        result = Consumed()
        done = asyncio.Event()
        await asyncio.gather(*(self._read(member, expected, result, done, progress) for member in self._consumers))
        return result

    async def _read(
        self,
        consumer: AIOKafkaConsumer,
        expected: int,
        result: Consumed,
        done: asyncio.Event,
        progress: asyncio.Queue[int],
    ) -> None:
        await consumer.start()
        quiet_since = time.monotonic()
        try:
            while not done.is_set() and time.monotonic() - quiet_since < IDLE_SECONDS:
                for batch in (await consumer.getmany(timeout_ms=200, max_records=5_000)).values():
                    quiet_since = time.monotonic()
                    for record in batch:
                        result.add(record.key, record.value, record.timestamp)
                progress.put_nowait(result.records)
                shares = [len(member.assignment()) for member in self._consumers]
                if sum(shares) == self._partitions and all(shares):
                    self.joined.set()
                if len(result.seen) >= expected:
                    done.set()
        finally:
            await consumer.stop()


def _consumer(bootstrap: str, topic: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id="demo",
        auto_offset_reset="earliest",
        session_timeout_ms=10_000,
        metadata_max_age_ms=2_000,
    )
