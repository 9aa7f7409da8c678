"""How old each record is when a consumer's poll returns it: librdkafka reading from the topic's end.

Runs as a separate process. Prints `ready` once it reads, then, when its input ends, one JSON list of ages
in seconds. Values come from load/workloads/producer.py.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import confluent_kafka

from load.workloads.producer import STAMP


def main() -> None:
    """`python -m load.workloads.reader PORT TOPIC PARTITIONS`."""
    port, topic, partitions = sys.argv[1:]
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "hostile", "enable.auto.commit": False}
    )
    places = [confluent_kafka.TopicPartition(topic, partition) for partition in range(int(partitions))]
    for place in places:
        place.offset = consumer.get_watermark_offsets(place, 30)[1]
    consumer.assign(places)
    consumer.poll(0.5)
    print("ready", flush=True)
    over = threading.Event()
    threading.Thread(target=_await_end_of_input, args=(over,), daemon=True).start()
    ages: list[float] = []
    while not over.is_set():
        messages = consumer.consume(500, 0.1)
        now = time.monotonic_ns()
        values = (message.value() for message in messages if message.error() is None)
        ages += [(now - STAMP.unpack_from(value)[0]) / 1e9 for value in values if value is not None]
    consumer.close()
    json.dump(ages, sys.stdout)


def _await_end_of_input(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


if __name__ == "__main__":
    main()
