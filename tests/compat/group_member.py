"""A consumer in a separate process that can be killed: `python -m tests.compat.group_member BOOTSTRAP GROUP
TOPIC PROTOCOL [INSTANCE]`, by librdkafka. A topic that begins with ^ is a pattern. Ends in good order when its
input ends.

It prints a line per event: `assigned 0,1` and `revoked 2` and `lost 2` (partitions), `value N`. The Java
member (GroupMember.java) speaks the same lines.
"""

from __future__ import annotations

import sys
import threading

import confluent_kafka


def _say(event: str, partitions: list[confluent_kafka.TopicPartition]) -> None:
    print(event, ",".join(str(each.partition) for each in partitions), flush=True)


def _stop_at_the_end_of_stdin(stopping: threading.Event) -> None:
    sys.stdin.read()
    stopping.set()


def main(bootstrap: str, group: str, topic: str, protocol: str, instance: str = "") -> None:
    stopping = threading.Event()
    threading.Thread(target=_stop_at_the_end_of_stdin, args=(stopping,), daemon=True).start()
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "reconnect.backoff.max.ms": 500,
        "socket.timeout.ms": 4_000,
        "log_level": 0,
    }
    if protocol == "classic":
        settings |= {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": 6_000}
        settings |= {"heartbeat.interval.ms": 300}
    if instance:
        settings["group.instance.id"] = instance
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: _say("assigned", partitions),
        on_revoke=lambda _, partitions: _say("revoked", partitions),
        on_lost=lambda _, partitions: _say("lost", partitions),
    )
    while not stopping.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            print("value", (message.value() or b"").decode(), flush=True)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
