"""A link and its source on one machine: `python -m load link_copy FOLDER --kafka JARS`.

The source is one node of Apache Kafka with the settings of `headrace bench`. Headrace is Postgres, an agent and a
compactor, with a directory as bucket. A backlog of records of 1 KB in batches of one size is written first, then a link
copies it: MB/s and CPU from the moment when the first records are copied until the last ones are. Then a producer
writes at a steady rate, and a consumer of the copy tells how old each record is when it gets it, reading included.
Nothing is merged meanwhile: the compactor's CPU is the link's.
FOLDER has the data.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from headrace.cli.bench.orders import percentile
from headrace.cli.bench.targets import MeasuredTarget, open_target, parse_target
from headrace.cli.bench.topic_admin import create_topic, open_admin
from headrace.cli.bench.window import ProcessUsage
from headrace.cli.client.offsets import LATEST, list_offsets, partitions_of
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, require
from headrace.protocol.link_requests import LinkOp, LinkRequest
from headrace.storage.errors import HeadraceError
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec
from load.harness import Benchmark, BenchmarkRun

PARTITIONS = 12
VALUE_BYTES = 1_000
LOOK_SECONDS = 0.05
WAIT_SECONDS = 600.0
WARM_UP_SECONDS = 5.0
TIMEOUT = datetime.timedelta(seconds=30)
GOAL_MB_PER_S, GOAL_CPU, GOAL_BEHIND = 200.0, 2.0, 2.0
NO_MERGES = "compaction.interval.ms=86400000"
"""What the compactor spends on merges of the copied files would be counted as the link's."""
BATCHES = {"16 KiB": 16, "1 MB": 950}
"""Records of a batch."""


def fill(bootstrap: str, topic: str, records: int, per_batch: int) -> int:
    """Write about so many records of random bytes, in batches of this many each; how many there are."""
    rng, now_ms = random.Random(1), time.time_ns() // 1_000_000
    values = [Record(number, now_ms, None, rng.randbytes(VALUE_BYTES), []) for number in range(per_batch)]
    batch = encode_batch(values, codec=Codec.NONE, base_offset=0)
    rounds = max(1, records // (per_batch * PARTITIONS))
    with open_admin(bootstrap) as cluster:
        (leader,) = set(partitions_of(cluster, [topic]).values())
        m = cluster.message(ApiKey.PRODUCE)
        partitions = tuple(m.make("PartitionProduceData", index=i, records=batch) for i in range(PARTITIONS))
        data = m.make("TopicProduceData", name=topic, partition_data=partitions)
        request = m.request(transactional_id=None, acks=-1, timeout=TIMEOUT, topic_data=(data,))

        def send() -> None:
            for answered in cluster.ask(ApiKey.PRODUCE, request, leader).responses:
                for partition in answered.partition_responses:
                    require(partition.error_code)

        cluster.look_again(send)  # a leader that was just elected may not know it yet
        for _ in range(rounds - 1):
            send()
        return ends(cluster, topic)


def ends(cluster: KafkaCluster, topic: str) -> int:
    """Return how many records the topic has; 0 if it is not there yet."""
    try:
        return sum(list_offsets(cluster, {(topic, index): LATEST for index in range(PARTITIONS)}).values())
    except HeadraceError:
        return 0


def _until(cluster: KafkaCluster, topic: str, count: int) -> int:
    """Return how many records the copy has, once these are more than `count`."""
    until = time.monotonic() + WAIT_SECONDS
    while (found := ends(cluster, topic)) <= count:
        if time.monotonic() > until:
            raise RuntimeError(f"the link copies nothing more: records={found}")
        time.sleep(LOOK_SECONDS)
    return found


def copy_backlog(here: MeasuredTarget, source: str, topic: str, records: int, usage: ProcessUsage) -> dict[str, Any]:
    """Create the link `topic`, and measure until the last of the records is here."""
    with open_admin(here.bootstrap) as cluster:
        configs: dict[str, str | None] = {"bootstrap.servers": source, "topics": topic}
        created = time.monotonic()
        cluster.links(LinkRequest(op=LinkOp.CREATE, link=topic, configs=configs))
        first = _until(cluster, topic, 0)
        began, before = time.monotonic(), usage.cpu_seconds()
        _until(cluster, topic, records - 1)
        seconds, after = time.monotonic() - began, usage.cpu_seconds()
        cluster.links(LinkRequest(op=LinkOp.PAUSE, link=topic))  # the next row has the worker's slots for itself
    gigabytes = (records - first) * VALUE_BYTES / 1e9
    spent = {kind: (after[kind] - before[kind]) / gigabytes for kind in after}
    return {
        "MB/s": gigabytes * 1e3 / seconds,
        **{f"CPU s/GB {kind}": figure for kind, figure in spent.items()},
        "s from create to first records": began - created,
    }


class Follower(threading.Thread):
    """Reads the copy's new records, and how old they are, in seconds."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self.ages: list[float] = []
        self.stopping = threading.Event()
        self._place = bootstrap, topic

    def run(self) -> None:
        bootstrap, topic = self._place
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "follower", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, index, OFFSET_END) for index in range(PARTITIONS)])
        while not self.stopping.is_set():
            messages = consumer.consume(1_000, 0.1)
            now = time.time()
            self.ages += [now - message.timestamp()[1] / 1e3 for message in messages if not message.error()]
        consumer.close()


def follow(
    here: MeasuredTarget, source: str, topic: str, mb_per_s: float, seconds: float, usage: ProcessUsage
) -> dict[str, Any]:
    """Write at this rate at the source; how old records are when a consumer of the copy gets them."""
    follower = Follower(here.bootstrap, topic)
    follower.start()
    config = {"bootstrap.servers": source, "batch.size": 16_384, "linger.ms": 5, "enable.idempotence": True}
    producer, value = Producer(config), random.Random(2).randbytes(VALUE_BYTES)
    per_turn, sent = round(mb_per_s * 1e6 / VALUE_BYTES / 100), 0
    began, before, warm = time.monotonic(), usage.cpu_seconds(), 0
    begun_at = began + WARM_UP_SECONDS
    while (now := time.monotonic()) < begun_at + seconds:
        if not warm and now >= begun_at:
            warm, before = len(follower.ages), usage.cpu_seconds()
            sent_before = sent
        due = int((now - began) * 100) * per_turn
        while sent < due:
            producer.produce(topic, value, partition=sent % PARTITIONS)
            sent += 1
        producer.poll(0.005)
    after = usage.cpu_seconds()
    ages = sorted(follower.ages[warm:])
    written = (sent - sent_before) * VALUE_BYTES / 1e6
    producer.flush(60)
    follower.stopping.set()
    follower.join()
    return {
        "MB/s written": written / seconds,
        "MB/s read here": len(ages) * VALUE_BYTES / 1e6 / seconds,
        "s behind p50": percentile(ages, 50),
        "s behind p99": percentile(ages, 99),
        "s behind, most": ages[-1],
        **{f"CPU s/GB {kind}": (after[kind] - before[kind]) / (written / 1e3) for kind in after},
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", type=Path, help="an empty folder for the data")
    parser.add_argument("--kafka", type=Path, required=True, metavar="JARS", help="where `make tools` put the jars")
    parser.add_argument("--backlog-mb", type=int, default=2_000)
    parser.add_argument("--follow-mb-per-s", type=float, default=10.0)
    parser.add_argument("--follow-seconds", type=float, default=30.0)
    parser.add_argument("--only", choices=(*BATCHES, "follow"))
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="of agent and compactor")


async def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in ("kafka", "here"):
        (args.folder / name).mkdir()
    args.folder.chmod(0o711)
    (args.folder / "here").chmod(0o711)  # started by root, Postgres runs as another user and must get through
    dev = " ".join(["here=dev", NO_MERGES, *args.set])
    async with (
        open_target(parse_target("kafka"), args.folder / "kafka", args.kafka) as kafka,
        open_target(parse_target(dev), args.folder / "here", None) as here,
    ):
        usage = ProcessUsage(here.roots | {"source": kafka.roots["kafka"]})
        await asyncio.to_thread(_measure, run, kafka.bootstrap, here, usage, list(BATCHES))


def _measure(run: BenchmarkRun, source: str, here: MeasuredTarget, usage: ProcessUsage, sizes: Sequence[str]) -> None:
    args = run.args
    for number, size in enumerate(sizes):
        if args.only not in (None, size):
            continue
        topic = f"backlog{number}"
        create_topic(source, topic, PARTITIONS)
        records = fill(source, topic, args.backlog_mb * 1_000_000 // VALUE_BYTES, BATCHES[size])
        figures = copy_backlog(here, source, topic, records, usage)
        goals = {"MB/s": GOAL_MB_PER_S, "CPU s/GB compactor": GOAL_CPU}
        run.row(f"backlog in batches of {size}", {"MB": records * VALUE_BYTES / 1e6, **figures}, goals)
    if args.only in (None, "follow"):
        topic = "followed"
        create_topic(source, topic, PARTITIONS)
        fill(source, topic, PARTITIONS, 1)
        _begin(here, source, topic)
        figures = follow(here, source, topic, args.follow_mb_per_s, args.follow_seconds, usage)
        run.row(f"following {args.follow_mb_per_s:g} MB/s", figures, {"s behind p99": GOAL_BEHIND})


def _begin(here: MeasuredTarget, source: str, topic: str) -> None:
    """Create the link `topic`; return when the copy has its first records."""
    with open_admin(here.bootstrap) as cluster:
        configs: dict[str, str | None] = {"bootstrap.servers": source, "topics": topic}
        cluster.links(LinkRequest(op=LinkOp.CREATE, link=topic, configs=configs))
        _until(cluster, topic, PARTITIONS - 1)


BENCHMARK = Benchmark(
    "a link copies a backlog of a real Kafka, and follows it: MB/s, CPU, seconds behind", benchmark, add_arguments
)
