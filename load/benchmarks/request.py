"""What the agent's own Python costs per Produce request: no kernel, no bucket, no Postgres.

`python -m load request`. Prepared frames are pushed into a connection as asyncio would, pass the whole
write path, meet a store and a metastore that say yes at once, and leave as replies into /dev/null. The
least of many rounds is shown, and the quartile below the median, so that it tells small changes apart on
a busy machine, where load/benchmarks/agent.py cannot. "taken" is from the socket's bytes to the buffer, "answered" the
rest.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
import uuid
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, cast

from prometheus_client import CollectorRegistry

from headrace.agent.access.quotas.client_traffic import ClientTraffic
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.listener.connection import KafkaConnection
from headrace.agent.listener.connection_limits import AcceptedSocket
from headrace.agent.listener.host import ConnectionHost, Limits
from headrace.agent.listener.metrics import ListenerMetrics
from headrace.agent.produce.callbacks import Callbacks, ProduceObserver
from headrace.agent.produce.pipeline import ProducePipeline
from headrace.config.settings import Settings
from headrace.metastore.api.commit import BatchAnswer, BatchOutcome, FileAnswer, FileCommit, FileStatus
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.protocol.api_keys import ApiKey
from headrace.storage.clock import SystemClock
from headrace.storage.collector_tuning import tune_collector
from headrace.storage.objects.store import ObjectInfo
from load.contexts import a_context
from load.harness import Benchmark, BenchmarkRun
from load.workloads.raw_producer import ProduceWorkload, Sequenced

PARTITIONS = 12
REQUESTS = 480
"""Requests of one round; they all meet in one file."""
ROUNDS = 60
TOPIC = TopicImage(uuid.UUID(int=7), 100, "bench", PARTITIONS, PARTITIONS, (0,) * PARTITIONS)
PLENTY = 1 << 30


class NoTransport(asyncio.Transport):
    """A connection with /dev/null as its peer."""

    def __init__(self) -> None:
        super().__init__()
        self._sink = open(os.devnull, "wb", buffering=0)  # noqa: SIM115 - closed with the process
        self._socket_facts = {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2), "socket": self._sink}

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket_facts.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever buffered."""

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """See KafkaConnection.is_paused."""

    def resume_reading(self) -> None:
        """See KafkaConnection.is_paused."""


class YesStore:
    """Stores nothing and says that it did."""

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        return ObjectInfo(key, len(body), 0, "")


class YesMetastore:
    """Accepts every batch."""

    @property
    def commits(self) -> YesMetastore:
        """The noun that the write path calls."""
        return self

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        yes = BatchAnswer(BatchOutcome.APPENDED, 5, 6)
        return [FileAnswer(file.file_id, FileStatus.COMMITTED, [yes] * len(file.batches)) for file in files]


class FixedView:
    """A cluster of one agent and one topic."""

    node_id = broker_epoch = 1
    image = MetadataImage(
        offset=1,
        topics_by_name=MappingProxyType({TOPIC.name: TOPIC}),
        topics_by_id=MappingProxyType({TOPIC.topic_id: TOPIC}),
        topics_by_number=MappingProxyType({TOPIC.topic_number: TOPIC}),
    )


async def measure(
    request_bytes: int, observer: ProduceObserver | None = None, pairs_max: int = 100
) -> dict[str, float]:
    """Return the row. `pairs_max`: client.metrics.max."""
    clock, registry = SystemClock(), CollectorRegistry()
    pipeline = ProducePipeline(
        a_context(
            YesMetastore(),
            clock,
            store=YesStore(),
            settings=Settings(linger_ms=0, flush_bytes=PLENTY),
            registry=registry,
        ),
        cast(Any, FixedView()),
        Callbacks(database_now_ms=clock.wall_ms),
        seen=None,
        authorizer=None,
        observer=observer,
    )
    await pipeline.start()
    dispatcher = Dispatcher()
    dispatcher.register(ApiKey.PRODUCE, pipeline.handle)
    limits = Limits(PLENTY, PLENTY, REQUESTS + 1, 1, 600_000)
    host = ConnectionHost(dispatcher.handle, limits, clock, ListenerMetrics(registry))
    host.traffic = ClientTraffic(pairs_max, registry) if pairs_max else None
    connection = a_connection(host)
    frames = Sequenced(ProduceWorkload("", 0, TOPIC.name, PARTITIONS, request_bytes, 1, 1, 1, 0, -1), -1)
    load = b"".join(frames.frame() for _ in range(REQUESTS))
    tune_collector()
    rounds = [await one_round(connection, load) for _ in range(ROUNDS)]
    await pipeline.close()
    taken, answered = (sorted(spent) for spent in zip(*rounds, strict=True))
    quartile = ROUNDS // 4
    return {
        "us taken": taken[0],
        "us taken, quartile": taken[quartile],
        "us answered": answered[0],
        "us answered, quartile": answered[quartile],
    }


def a_connection(host: ConnectionHost) -> KafkaConnection:
    """Open, on a listener with room for it."""
    entrance, transport = host.entrance("PLAINTEXT", None, for_agents=False), NoTransport()
    connection = KafkaConnection(host, entrance, AcceptedSocket(host, entrance, transport, ("127.0.0.1", 1)))
    connection.connection_made(transport)
    return connection


async def one_round(connection: KafkaConnection, load: bytes) -> tuple[float, float]:
    """CPU microseconds per request until all were taken, and from then until all were answered."""
    started = time.process_time()
    position = 0
    while position < len(load):
        buffer = connection.get_buffer(0)
        size = min(len(buffer), len(load) - position)
        buffer[:size] = load[position : position + size]
        connection.buffer_updated(size)
        position += size
        while connection.is_paused:  # noqa: ASYNC110 - the turns that start the rest of what was read
            await asyncio.sleep(0)
    taken = time.process_time()
    while connection.in_progress:  # noqa: ASYNC110 - every turn of the loop is work that is measured
        await asyncio.sleep(0)
    return (taken - started) / REQUESTS * 1e6, (time.process_time() - taken) / REQUESTS * 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--client-metrics-max", type=int, default=100, help="0: requests are not counted by client")


def benchmark(run: BenchmarkRun) -> None:
    for kib in (1, 16, 64):
        run.row(f"{kib} KiB", asyncio.run(measure(kib * 1024, pairs_max=run.args.client_metrics_max)))


BENCHMARK = Benchmark("a Produce request's own Python", benchmark, add_arguments)
