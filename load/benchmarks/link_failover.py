"""A region is lost, and its copy goes on: `python -m load link_failover`.

Two clusters of `headrace dev` on this machine: the main one, and one with a link to it. A producer writes records of
1 KB to the main one at a steady rate and notes which were acknowledged. Then all processes of the main one are killed,
and `headrace link promote --force` is sent to the other at once. RPO: acknowledged records that the copy lacks. RTO:
from the request until the first record is accepted there.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import threading
import time
from collections import Counter
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from headrace.cli.bench.topic_admin import create_topic, open_admin
from headrace.cli.client.offsets import LATEST, list_offsets, partitions_of
from headrace.cli.client.records import produce
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.link_requests import LinkOp, LinkRequest
from headrace.storage.errors import HeadraceError
from headrace.storage.records.codec import Record
from headrace.storage.records.compression import Codec
from load.dev_server import DevServer
from load.harness import Benchmark, BenchmarkRun

TOPIC, LINK = "orders", "main"
PARTITIONS = 12
VALUE_BYTES = 1_000
TURNS_PER_SECOND = 100
LOOK_SECONDS = 0.01
WAIT_SECONDS = 600.0
BATCH = [Record(0, 1_700_000_000_000, b"key", b"after the failover", [])]


class Writer(threading.Thread):
    """Writes at a rate until it is stopped. `ends`: by partition, the offset behind the last acknowledged record."""

    def __init__(self, bootstrap: str, mb_per_s: float) -> None:
        super().__init__()
        self.ends: Counter[int] = Counter()
        self.stopping = threading.Event()
        self._per_turn = max(1, round(mb_per_s * 1e6 / VALUE_BYTES / TURNS_PER_SECOND))
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})

    def run(self) -> None:
        value, sent, began = random.Random(3).randbytes(VALUE_BYTES), 0, time.monotonic()
        while not self.stopping.is_set():
            due = int((time.monotonic() - began) * TURNS_PER_SECOND) * self._per_turn
            while sent < due and len(self._producer) < self._per_turn * TURNS_PER_SECOND:
                self._producer.produce(TOPIC, value, partition=sent % PARTITIONS, on_delivery=self._note)
                sent += 1
            self._producer.poll(0.005)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            index = int(message.partition() or 0)
            self.ends[index] = max(self.ends[index], int(message.offset() or 0) + 1)


def _ends(cluster: KafkaCluster) -> dict[int, int]:
    """Return where the copy ends, by partition; empty while it is not there."""
    try:
        found = list_offsets(cluster, {(TOPIC, index): LATEST for index in range(PARTITIONS)})
    except HeadraceError:
        return {}
    return {index: end for (_, index), end in found.items()}


def _first_accepted(cluster: KafkaCluster) -> float:
    """Return when the first record is accepted."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            produce(cluster, partitions_of(cluster, [TOPIC])[TOPIC, 0], TOPIC, 0, BATCH, Codec.NONE)
        except HeadraceError:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK_SECONDS)
        else:
            return time.monotonic()


def fail_over(main: DevServer, here: DevServer, mb_per_s: float, seconds: float) -> dict[str, Any]:
    """One failover: what the copy lacks, and how long until it takes records."""
    create_topic(main.bootstrap, TOPIC, PARTITIONS)
    writer = Writer(main.bootstrap, mb_per_s)
    with open_admin(here.bootstrap) as cluster:
        configs: dict[str, str | None] = {"bootstrap.servers": main.bootstrap, "topics": TOPIC}
        cluster.links(LinkRequest(op=LinkOp.CREATE, link=LINK, configs=configs))
        writer.start()
        until = time.monotonic() + WAIT_SECONDS
        while not (ends := _ends(cluster)) or not all(ends.values()):
            if time.monotonic() > until:
                raise RuntimeError("the link copies nothing")
            time.sleep(LOOK_SECONDS)
        time.sleep(seconds)
        main.kill()
        asked = time.monotonic()
        cluster.links(LinkRequest(op=LinkOp.PROMOTE, link=LINK, force=True))
        accepted = _first_accepted(cluster)
        writer.stopping.set()
        writer.join()
        copied = _ends(cluster)
        copied[0] -= len(BATCH)
    lacks = sum(max(writer.ends[index] - copied[index], 0) for index in range(PARTITIONS))
    return {
        "records acknowledged": sum(writer.ends.values()),
        "records that the copy lacks": lacks,
        "s of the rate": lacks * VALUE_BYTES / 1e6 / mb_per_s,
        "s until a record is accepted": accepted - asked,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--mb-per-s", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long it is written before the kill")
    parser.add_argument("--rounds", type=int, default=5)


async def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    for number in range(1, args.rounds + 1):
        (place := run.place / str(number)).mkdir()
        place.chmod(0o711)
        main = DevServer(place / "main", errors=place / "main.log")
        with DevServer(place / "here", errors=place / "here.log") as here, main:
            figures = await asyncio.to_thread(fail_over, main, here, args.mb_per_s, args.seconds)
        run.row(f"failover {number} at {args.mb_per_s:g} MB/s", figures)


BENCHMARK = Benchmark(
    "a copy of a killed Headrace goes on: what it lacks (RPO), when it takes records (RTO)", benchmark, add_arguments
)
