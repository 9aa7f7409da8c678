"""librdkafka's idempotent producer as a writer of the torture run (load/torture/pacing.py says what that is).

When a batch's outcome is unknown and a later batch of its partition is acknowledged, librdkafka takes the
former as stored, which is correct: no broker accepts a gap. It got no offset, so it reports none
(rd_kafka_dr_implicit_ack). It logs how many records those were: as many must have come without an offset.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable

import confluent_kafka

from load.torture.pacing import Arguments, Pacer, pause


class Transmitted:
    """Records that librdkafka put into requests, repetitions included, as its statistics count them."""

    def __init__(self) -> None:
        self.records = 0

    def on_statistics(self, text: str) -> None:
        """Called by librdkafka."""
        topics = json.loads(text)["topics"].values()
        self.records = sum(partition["txmsgs"] for topic in topics for partition in topic["partitions"].values())


class Diary(logging.Handler):
    """librdkafka's debug log of its idempotence, on stderr; lines about duplicates are reported."""

    def __init__(self, pacer: Pacer) -> None:
        super().__init__()
        self.implied = 0
        self._pacer = pacer

    def emit(self, record: logging.LogRecord) -> None:
        """Called by librdkafka from poll and flush."""
        line = record.getMessage()
        print(line, file=sys.stderr)
        if match := re.search(r"(\d+) message\(s\) implicitly acked", line):
            self.implied += int(match[1])
        elif match := re.search(r"(?:epoch bump|reset) for .* in-flight requests: (.*)", line):
            self._pacer.started_over(match[1])


def main() -> None:
    """Write until told to stop."""
    arguments = Arguments.read()
    pacer, transmitted = Pacer("confluent", arguments), Transmitted()
    diary = Diary(pacer)
    logger = logging.Logger("librdkafka", logging.DEBUG)
    logger.addHandler(diary)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": arguments.delivery_ms,
            "request.timeout.ms": 2_000,
            "socket.timeout.ms": 3_000,
            "reconnect.backoff.max.ms": 500,
            "retry.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1_000,
            "statistics.interval.ms": 500,
            "stats_cb": transmitted.on_statistics,
            "debug": "eos",
        },
        logger=logger,
    )
    while not pacer.is_stopped:
        for partition, number, value in pacer.next_burst():
            producer.produce(arguments.topic, value, partition=partition, on_delivery=_settle(pacer, partition, number))
        producer.poll(0)
        pause()
    producer.flush(arguments.delivery_ms / 1000 + 5)
    producer.poll(1)
    pacer.implied(diary.implied)
    pacer.end(max(0, transmitted.records - pacer.sent))


def _settle(pacer: Pacer, partition: int, number: int) -> Callable[[object, confluent_kafka.Message], None]:
    def delivered(error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            pacer.acknowledged(partition, number, message.offset())
        else:
            pacer.failed(partition, number, error)

    return delivered


if __name__ == "__main__":
    main()
