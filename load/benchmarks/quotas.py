"""How closely quotas are kept: bytes per second of real clients over a minute, with one agent and with three.

Place: `python -m load quotas [--seconds 60] [--agents 1 3] [--rate 2000000]`. `headrace dev` on a new Postgres and a
directory. The clients are librdkafka: producers, then consumers, as many as agents, as fast as they may, on a topic
with partitions at every agent. Quotas are set for their common client id. Printed is what passed, in percent of the
quota: values that were acknowledged or read. The rest of their requests is about 1 %.
"""

from __future__ import annotations

import argparse
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest, EntityData, EntryData, OpData
from kio.schema.alter_client_quotas.v1.response import AlterClientQuotasResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import f64

from headrace.protocol.client.transport import exchange
from load.harness import Benchmark, BenchmarkRun

TOPIC = "limited"
PARTITIONS = 12
VALUE_BYTES = 10_000
CLIENT = "limited-client"
SECONDS_MAX = 120.0


def set_quota(address: str, client_id: str, **values: float) -> None:
    """Set quotas of a client id, as `kafka-configs.sh --alter --entity-type clients` does."""
    host, _, port = address.partition(":")
    entity = (EntityData(entity_type="client-id", entity_name=client_id),)
    ops = tuple(OpData(key=key, value=f64(float(value)), remove=False) for key, value in values.items())
    request = AlterClientQuotasRequest(entries=(EntryData(entity=entity, ops=ops),), validate_only=False)
    with socket.create_connection((host, int(port)), SECONDS_MAX) as connection:
        answer = exchange(connection, "admin", request, AlterClientQuotasResponse)
    (entry,) = answer.entries
    if entry.error_code is not ErrorCode.none:
        raise RuntimeError(f"quota refused: {entry.error_message}")


class Counted:
    """Bytes that passed, counted by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total = 0
        self.stopping = threading.Event()

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self.total += size_bytes


def write(settings: dict[str, Any], counted: Counted) -> None:
    """Write until it is stopped; what is acknowledged counts."""
    producer = confluent_kafka.Producer(
        settings
        | {
            "batch.size": 100_000,
            "linger.ms": 20,
            "queue.buffering.max.kbytes": 4_000,
            "sticky.partitioning.linger.ms": 0,
            "message.timeout.ms": 0,
        }
    )
    value, number = bytes(VALUE_BYTES), 0

    def on_delivery(error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            counted.add(VALUE_BYTES)

    while not counted.stopping.is_set():
        try:
            producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=on_delivery)
            number += 1
        except BufferError:
            producer.poll(0.05)
        producer.poll(0)
    producer.purge()


def read(settings: dict[str, Any], counted: Counted, own: int, count: int) -> None:
    """Read until it is stopped, its part of the partitions from the start, again and again."""
    group = {"group.id": "none", "enable.auto.commit": False, "fetch.message.max.bytes": 100_000}
    queue = {"queued.max.messages.kbytes": 20_000, "queued.min.messages": 2_000, "fetch.queue.backoff.ms": 10}
    consumer = confluent_kafka.Consumer(settings | group | queue | {"enable.partition.eof": True})
    mine = [confluent_kafka.TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS) if p % count == own]
    consumer.assign(mine)
    while not counted.stopping.is_set():
        for message in consumer.consume(100, 0.2):
            error, partition = message.error(), message.partition()
            if error is None:
                counted.add(VALUE_BYTES)
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF and partition is not None:
                consumer.seek(confluent_kafka.TopicPartition(TOPIC, partition, 0))
    consumer.close()


def measure(work: Callable[[Counted, int], None], clients: int, seconds: float) -> float:
    """Bytes per second of all clients together."""
    counted = Counted()
    threads = [threading.Thread(target=work, args=(counted, number)) for number in range(clients)]
    for thread in threads:
        thread.start()
    while not counted.total:
        time.sleep(0.01)
    began, before = time.monotonic(), counted.total
    time.sleep(seconds)
    rate = (counted.total - before) / (time.monotonic() - began)
    counted.stopping.set()
    for thread in threads:
        thread.join()
    return rate


def keep(run: BenchmarkRun, agents: int, rate: float, seconds: float) -> None:
    """Tell how closely the quotas are kept."""
    with run.dev_server(agents=agents) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(SECONDS_MAX)
        free = {"bootstrap.servers": server.bootstrap, "log_level": 0}
        limited = free | {"client.id": CLIENT}
        unlimited = measure(lambda counted, _: write(free, counted), agents, min(seconds, 5.0))
        set_quota(server.agents[0].kafka, CLIENT, producer_byte_rate=rate, consumer_byte_rate=rate)
        wrote = measure(lambda counted, _: write(limited, counted), agents, seconds)
        got = measure(lambda counted, own: read(limited, counted, own, agents), agents, seconds)
        figures = {"MB/s without a quota": unlimited / 1e6, "of it by producers": wrote / rate}
        run.row(f"{agents} agents, quota {rate / 1e6:.1f} MB/s", figures | {"of it by consumers": got / rate})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--rate", type=float, default=2_000_000.0)


def benchmark(run: BenchmarkRun) -> None:
    for agents in run.args.agents:
        keep(run, agents, run.args.rate, run.args.seconds)


BENCHMARK = Benchmark("how closely quotas of bytes are kept", benchmark, add_arguments)
