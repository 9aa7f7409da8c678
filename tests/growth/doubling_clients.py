"""A topic doubles under real clients that know only the count: order per key, what is refused, how late they learn.

Place: `python -m tests.growth.doubling_clients [--seconds 40] [--agents 2] [--java] [--others]` starts `headrace dev`
and doubles a topic by the operator's command. Producers are librdkafka's (confluent-kafka), with --java also Kafka's
Java client, with --others also franz-go and kafkajs; some come and go. Each record says who sent it and its number. A
group of KIP-848 reads meanwhile (doubling_readers.py).
Judged are what the group got, in its order, and the logs: each parent up to its boundary, then its child, then the rest
of the parent.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka

from headrace.config.settings import Settings
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from load.dev_server import DevServer
from tests.growth.doubling_producers import (
    COUNT,
    REFRESH_MS,
    TOPIC,
    Producing,
    Sent,
    franz_producing,
    java_producing,
    kafkajs_producing,
)
from tests.growth.doubling_readers import JavaMember, Members, compile_java

BOUNDARY_QUIET_MS = 2 * REFRESH_MS
READ_S = 60.0
SETTINGS = {"group.consumer.min.heartbeat.interval.ms": 1_500, "group.consumer.heartbeat.interval.ms": 1_500}


@dataclass(frozen=True)
class DoublingOutcome:
    """`boundary_ms`: from the doubling until the last boundary was set; `command_ms`: until the command ended.

    `at_once`: how many records are out of order if children are read first. `not_delivered`, `delivered_late`: by the
    group. `stale_ms`: of Sent.
    """

    acknowledged: int
    by_producer: Mapping[str, int]
    lost: int
    inversions: int
    at_once: int
    not_delivered: int
    delivered_late: int
    delivered_again: int
    by_java: int
    failed: Mapping[str, int]
    first_in_child_ms: tuple[int, ...]
    stale_ms: Mapping[str, int]
    boundary_ms: int
    command_ms: int
    said: str

    def __str__(self) -> str:
        return (
            f"acknowledged={self.acknowledged} by_producer={dict(self.by_producer)}"
            f" lost={self.lost} out_of_order={self.inversions}"
            f" children_first={self.at_once} failed={dict(self.failed)}"
            f" first_in_child_ms={_range(self.first_in_child_ms)} last_moved_key_in_parent_ms={dict(self.stale_ms)}"
            f" boundary_ms={self.boundary_ms} command_ms={self.command_ms}\n"
            f"group: not_delivered={self.not_delivered} out_of_order={self.delivered_late}"
            f" again={self.delivered_again} by_java={self.by_java}\n{self.said}"
        )


def _range(values: tuple[int, ...]) -> str:
    return f"{min(values)} to {max(values)}" if values else "none"


def double(bootstrap: str) -> subprocess.Popen[str]:
    """The operator's command, which ends when all groups may read all partitions."""
    words = ["topics", "alter", TOPIC, "--double", "--partitions", str(2 * COUNT), "-b", bootstrap]
    words += ["--producers-max-age-ms", str(BOUNDARY_QUIET_MS)]
    command = [sys.executable, "-m", "headrace.cli.main", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def boundaries(metastore_url: str, sent: Sent) -> dict[int, int]:
    """Parent -> boundary, once all are set; notes when the topic has doubled."""
    store = await PostgresMetastore.open(metastore_url, Settings(metastore_pool_size=1))
    try:
        while True:
            splits = (await load_image(store.cluster)).topics_by_name[TOPIC].splits
            found = {parent: split.boundary for parent, split in splits.items() if split.boundary is not None}
            if splits and not sent.doubled_at:
                sent.doubled_at = time.monotonic()
            if splits and len(found) == len(splits):
                return found
            await asyncio.sleep(0.1)
    finally:
        await store.close()


def read_all(bootstrap: str) -> dict[int, list[tuple[bytes, str, int]]]:
    """Partition -> (key, producer, number), by offset."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    )
    places = [confluent_kafka.TopicPartition(TOPIC, index, 0) for index in range(2 * COUNT)]
    left = sum(consumer.get_watermark_offsets(place)[1] for place in places)
    logs: dict[int, list[tuple[bytes, str, int]]] = {index: [] for index in range(2 * COUNT)}
    consumer.assign(places)
    until = time.monotonic() + READ_S
    while left and time.monotonic() < until:
        for message in consumer.consume(1_000, 1.0):
            key, value, partition = message.key(), message.value(), message.partition()
            if message.error() is None and key is not None and value is not None and partition is not None:
                name, _, number = value.decode().rpartition("/")
                logs[partition].append((key, name, int(number)))
                left -= 1
    consumer.close()
    assert not left, f"records not read: {left}"
    return logs


def inversions(logs: Mapping[int, list[tuple[bytes, str, int]]], ends: Mapping[int, int]) -> int:
    """Records that are read after a newer one of their producer and key."""
    found = 0
    for parent, boundary in ends.items():
        newest: dict[tuple[bytes, str], int] = {}
        log = logs[parent]
        for key, name, number in (*log[:boundary], *logs[parent + COUNT], *log[boundary:]):
            found += number < newest.get((key, name), -1)
            newest[key, name] = max(number, newest.get((key, name), -1))
    return found


def run(server: DevServer, seconds: float, classes: Path | None = None, *, others: bool = False) -> DoublingOutcome:
    """Double in a third of the time; some clients end before the end, and others begin. `classes`: of Java. `others`:
    franz-go and kafkajs, too."""
    asyncio.run(server.create_topic(TOPIC, COUNT))
    sent, began = Sent(), time.monotonic()
    members = Members(server.bootstrap, TOPIC)
    members.start()
    settings: list[Mapping[str, Any]] = [{}, {"linger.ms": 200}, {"batch.num.messages": 3}]
    threads: list[threading.Thread] = [
        Producing(server.bootstrap, f"whole-{index}", sent, began + seconds, settings[index % 3]) for index in range(3)
    ]
    threads.append(Producing(server.bootstrap, "early", sent, began + seconds / 2, {}))
    java = None
    if classes is not None:
        java = JavaMember(server.bootstrap, TOPIC, members.delivered, seconds + 20, classes)
        threads += [java_producing(server.bootstrap, "java", sent, seconds, classes), java]
    if others:
        threads.append(franz_producing(server.bootstrap, "franz-go", sent, seconds))
        threads.append(kafkajs_producing(server.bootstrap, "kafkajs", sent, seconds))
    for thread in threads:
        thread.start()
    time.sleep(seconds / 3)
    command = double(server.bootstrap)
    late = Producing(server.bootstrap, "late", sent, began + seconds, {})
    late.start()
    ends = asyncio.run(boundaries(server.metastore_url, sent))
    boundary_ms = int(1000 * (time.monotonic() - sent.doubled_at))
    said = command.communicate(timeout=seconds + READ_S)
    command_ms = int(1000 * (time.monotonic() - sent.doubled_at))
    assert command.returncode == 0, said
    for thread in (*threads, late):
        thread.join()
    not_delivered = members.wait_for(sent.acknowledged, READ_S)
    members.stop()
    logs = read_all(server.bootstrap)
    read = {(name, number) for log in logs.values() for _, name, number in log}
    return DoublingOutcome(
        len(sent.acknowledged),
        Counter(name for name, _ in sent.acknowledged),
        len(sent.acknowledged - read),
        inversions(logs, ends),
        inversions(logs, dict.fromkeys(ends, 0)),
        not_delivered,
        members.delivered.inversions,
        members.delivered.again,
        0 if java is None else java.records,
        sent.failed,
        tuple(sent.children_ms),
        sent.stale_ms,
        boundary_ms,
        command_ms,
        "".join(reversed(said)),
    )


def main() -> None:
    """One doubling."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--agents", type=int, default=1)
    parser.add_argument("--java", action="store_true", help="also Kafka's Java client")
    parser.add_argument("--others", action="store_true", help="also franz-go and kafkajs")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        classes = Path(directory) / "classes" if args.java else None
        if classes is not None:
            compile_java(classes)
        with DevServer(Path(directory) / "dev", agents=args.agents, settings=SETTINGS) as server:
            print(run(server, args.seconds, classes, others=args.others))


if __name__ == "__main__":
    main()
