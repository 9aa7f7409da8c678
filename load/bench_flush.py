"""What one flush costs, regardless of its content: `python -m load.bench_flush`.

A lone client in a closed loop: each round sends `--requests` Produce requests of one 16 KiB batch each
and waits for their answers, so that each round is one flush. CPU microseconds per flush, ours (all
threads) and Postgres', with a bucket and a metastore that say yes at once, with a directory as bucket,
with a real Postgres, and with both. The least of the rounds' quarters is shown, because a busy machine
only adds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from prometheus_client import CollectorRegistry

from headrace.agent.listener.frames import read_request_header
from headrace.agent.produce.pipeline import Callbacks, ProducePipeline
from headrace.config.settings import Settings
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.request import ClientConnection, Request
from headrace.storage.clock import SystemClock
from headrace.storage.collector_tuning import tune_collector
from headrace.storage.objects.directory import DirectoryStore
from load.bench_commit import CommitBench, opened
from load.bench_request import PARTITIONS, TOPIC, FixedView, YesMetastore, YesStore
from load.postgres_server import read_cost
from load.raw_producer import ProduceWorkload, Sequenced

REQUEST_BYTES = 16 * 1024
QUARTERS = 4
LENGTH_BYTES = 4


@dataclass
class Setup:
    """The pipeline's dependencies; `url` of a real Postgres, if there is one."""

    name: str
    store: Any
    metastore: Any
    view: Any
    url: str | None = None


async def measure(setup: Setup, requests: int, flushes: int) -> None:
    """Print one line."""
    clock, registry = SystemClock(), CollectorRegistry()
    pipeline = ProducePipeline(
        setup.store,
        setup.metastore,
        setup.view,
        Settings(),
        clock,
        random.Random(1),
        Callbacks(database_now_ms=clock.wall_ms),
        registry,
    )
    await pipeline.start()
    connection = ClientConnection(1, "127.0.0.1:1")
    frames = Sequenced(ProduceWorkload("", 0, TOPIC.name, PARTITIONS, REQUEST_BYTES, 1, 1, 1, 0, -1), -1)

    async def flush() -> None:
        answers = []
        for _ in range(requests):
            frame = memoryview(frames.frame())[LENGTH_BYTES:]
            key, version, correlation_id, client_id, start = read_request_header(frame)
            request = Request(connection, key, version, correlation_id, client_id, frame[start:], clock.monotonic())
            answers.append(pipeline.handle(request))
        for answer in answers:
            await answer

    for _ in range(50):
        await flush()
    tune_collector()
    ours, theirs, elapsed = [], [], []
    for _ in range(QUARTERS):
        before = read_cost(setup.url) if setup.url else None
        cpu, began = time.process_time(), time.perf_counter()
        for _ in range(flushes // QUARTERS):
            await flush()
        ours.append((time.process_time() - cpu) / (flushes // QUARTERS))
        elapsed.append((time.perf_counter() - began) / (flushes // QUARTERS))
        if setup.url and before:
            theirs.append(read_cost(setup.url).since(before).cpu_seconds / (flushes // QUARTERS))
    await pipeline.close()
    postgres = f"  Postgres {min(theirs) * 1e6:6.0f} us" if theirs else ""
    print(
        f"flush of {requests} requests  {setup.name:24} round trip {min(elapsed) * 1e6:6.0f} us"
        f"  ours {min(ours) * 1e6:6.0f} us{postgres}",
        flush=True,
    )


@asynccontextmanager
async def setups(place: Path) -> AsyncIterator[list[Setup]]:
    """From nothing real to everything real."""
    clock = SystemClock()
    directory = DirectoryStore(place / "bucket", clock)
    async with opened(place, 1) as bench:
        view = await _view(bench)
        yield [
            Setup("neither", YesStore(), YesMetastore(), FixedView()),
            Setup("a directory", directory, YesMetastore(), FixedView()),
            Setup("Postgres", YesStore(), bench.store, view, bench.url),
            Setup("a directory and Postgres", directory, bench.store, view, bench.url),
        ]


async def _view(bench: CommitBench) -> Any:
    """The cluster as the metastore has it: one agent, one topic."""
    topic = replace(TOPIC, topic_number=await bench.topic(PARTITIONS))
    view = cast(Any, FixedView())
    view.node_id, view.broker_epoch = bench.agent.node_id, bench.agent.broker_epoch
    view.image = MetadataImage(
        offset=1,
        topics_by_name=MappingProxyType({topic.name: topic}),
        topics_by_id=MappingProxyType({topic.topic_id: topic}),
        topics_by_number=MappingProxyType({topic.topic_number: topic}),
    )
    return view


async def run(place: Path, flushes: int, requests: list[int]) -> None:
    """Every combination."""
    async with setups(place) as found:
        for count in requests:
            for setup in found:
                await measure(setup, count, flushes)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flushes", type=int, default=400)
    parser.add_argument("--requests", type=int, nargs="*", default=[1, 5])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        place = Path(directory)
        place.chmod(0o711)
        asyncio.run(run(place, args.flushes, args.requests))


if __name__ == "__main__":
    main()
