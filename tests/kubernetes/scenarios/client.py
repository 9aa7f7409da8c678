"""An idempotent producer and two readers, until SIGTERM: `python -m tests.kubernetes.scenarios.client BOOTSTRAP TOPIC`.

Place: a scenario runs it in a pod, or in the namespace of clients outside the cluster.
Prints `running` after the first acknowledgement and the group's first record, and at its end one line of JSON.
Invariant: each acknowledged record must be read exactly once, in its producer's order, by a reader that assigns itself
all partitions; a member of a group must read each at least once. Errors that librdkafka hands to an application count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from tests.torture.checker import Name, Read, check

PARTITIONS = 6
PAUSE_S = 0.01
PATIENCE_S = 60.0


@dataclass
class Story:
    """What the clients saw. Times are time.monotonic()."""

    acknowledged: dict[Name, int] = field(default_factory=dict)
    times: dict[int, list[float]] = field(default_factory=dict)
    """Times of acknowledgements, by partition."""
    read: list[Read] = field(default_factory=list)
    group: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)


def produce(bootstrap: str, topic: str, story: Story, stopping: threading.Event) -> None:
    """Numbered records, each partition in turn."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "reconnect.backoff.max.ms": 500}
    )

    def reported(error: Any, message: Any) -> None:
        if error is not None:
            story.errors.append(f"producer: {error}")
            return
        story.times.setdefault(message.partition(), []).append(time.monotonic())
        story.acknowledged[Name.of(message.value().decode())] = message.offset()

    number = 0
    while not stopping.is_set():
        for partition in range(PARTITIONS):
            producer.produce(
                topic, Name("p", partition, number).value().encode(), partition=partition, on_delivery=reported
            )
        number += 1
        producer.poll(PAUSE_S)
        time.sleep(PAUSE_S)
    left = producer.flush(PATIENCE_S)
    if left:
        story.errors.append(f"producer: {left} records without an answer")


def read(bootstrap: str, topic: str, story: Story, ended: threading.Event) -> None:
    """All partitions, without a group."""
    consumer = _consumer(bootstrap, "unused")
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    while not ended.is_set():
        for message in consumer.consume(500, 0.2):
            if message.error():
                story.errors.append(f"reader: {message.error()}")
            else:
                story.read.append(
                    Read(message.partition() or 0, message.offset() or 0, (message.value() or b"").decode())
                )
    consumer.close()


def read_in_group(bootstrap: str, topic: str, story: Story, ended: threading.Event) -> None:
    """Do the same as the only member of a group."""
    consumer = _consumer(bootstrap, f"group-of-{topic}")
    consumer.subscribe([topic])
    while not ended.is_set():
        for message in consumer.consume(500, 0.2):
            if message.error():
                story.errors.append(f"group: {message.error()}")
            else:
                story.group.add((message.value() or b"").decode())
    consumer.close()


def _consumer(bootstrap: str, group: str) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 2_000,
        }
    )  # fmt: skip


def summary(story: Story) -> dict[str, object]:
    """The last line."""
    verdict = check(story.acknowledged, story.read)
    pauses = [after - before for times in story.times.values() for before, after in itertools.pairwise(times)]
    missed = len({name.value() for name in story.acknowledged} - story.group)
    return {
        "acknowledged": len(story.acknowledged), "read": verdict.read, "errors": story.errors[:5],
        "offences": verdict.offences[:5], "group_missed": missed,
        "longest_silence_s": round(max(pauses, default=0.0), 2),
    }  # fmt: skip


def main() -> None:
    """Until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    args = parser.parse_args()
    stopping, ended, story = threading.Event(), threading.Event(), Story()
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    admin = AdminClient({"bootstrap.servers": args.bootstrap})
    for future in admin.create_topics([NewTopic(args.topic, PARTITIONS)]).values():
        future.result(PATIENCE_S)
    work = [(produce, stopping), (read, ended), (read_in_group, ended)]
    threads = [threading.Thread(target=run, args=(args.bootstrap, args.topic, story, event)) for run, event in work]
    for thread in threads:
        thread.start()
    shown = False
    while not stopping.is_set():
        if not shown and story.times and story.read and story.group:
            print("running", flush=True)
            shown = True
        time.sleep(0.1)
    threads[0].join()
    until = time.monotonic() + PATIENCE_S
    wanted = {name.value() for name in story.acknowledged}
    while time.monotonic() < until:
        seen = {record.value for record in story.read}
        if wanted <= seen and wanted <= story.group:
            break
        time.sleep(0.2)
    ended.set()
    for thread in threads[1:]:
        thread.join()
    print(json.dumps(summary(story)), flush=True)


if __name__ == "__main__":
    main()
