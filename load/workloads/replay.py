"""A topic read from its beginning by a Kafka client: an agent that has cached nothing, over a socket.

Place: what the benchmarks of compaction call "replay". The agent runs in this process, the client
(load/workloads/backfill_reader.py, one connection per partition up to 4) in a separate one.
Invariant: the agent joins for the replay and leaves after it; the bucket stays open.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import NamedTuple

from headrace.cli.process.open_process import compose_agent
from headrace.config.settings import Settings
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import Clock
from headrace.storage.objects.merging import MergingStore
from load.contexts import a_context
from load.workloads.counting_store import CountingStore

CONNECTIONS = 4


class Replay(NamedTuple):
    """What the client got, and what the agent asked the bucket for."""

    bytes: int
    seconds: float
    gets: int
    got_bytes: int

    @property
    def mb_per_s(self) -> float:
        """Throughput in MB/s, of 10^6 bytes."""
        return self.bytes / 1e6 / self.seconds


async def replay(url: str, store: CountingStore, clock: Clock, topic: str, partitions: int) -> Replay:
    """Read all of it once. RuntimeError when the client fails."""
    settings = Settings(metastore_url=url, listeners="PLAINTEXT://127.0.0.1:0", http_port=0, metastore_pool_size=4)
    metastore = await PostgresMetastore.open(url, settings)
    process, agent = compose_agent(a_context(metastore, clock, store=MergingStore(store), settings=settings))
    try:
        await process.start()
        reader = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "load.workloads.backfill_reader", str(agent.kafka_port), topic, str(partitions),
            str(min(CONNECTIONS, partitions)), "once", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert reader.stdout is not None
        if await reader.stdout.readline() != b"ready\n":
            raise RuntimeError("the reader did not start")
        store.reset()
        output, _ = await reader.communicate(b"go\n")
        if reader.returncode:
            raise RuntimeError(f"the reader failed: status={reader.returncode}")
        found = json.loads(output)
        return Replay(found["bytes"], found["seconds"], store.gets, store.get_bytes)
    finally:
        await process.stop()
