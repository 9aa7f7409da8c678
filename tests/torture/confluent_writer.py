"""librdkafka's idempotent producer as a writer of the torture run (tests/torture/pacing.py says what that is).

When a batch's outcome is unknown and a later batch of its partition is acknowledged, librdkafka takes the
former as stored, which is correct: no broker accepts a gap. It got no offset, so it reports none
(rd_kafka_dr_implicit_ack). It logs how many records those were: as many must have come without an offset.
When Postgres lost acknowledged batches, the next one is out of order: a fatal error, after which only a new producer
continues, as in an application.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from typing import cast

import confluent_kafka

from tests.torture.pacing import Arguments, Pacer, pause

_RAISED_ERROR = cast("type[BaseException]", confluent_kafka.KafkaError)
"""Its type has the flag of an exception, and no exception as its base: it is raised, and can be caught by itself."""
FATAL = (_RAISED_ERROR, confluent_kafka.KafkaException, SystemError)
"""How poll and flush raise a fatal error: the last one if a line of the log is due at the same time."""


class Transmitted:
    """Records that librdkafka put into requests, repetitions included, as its statistics count them."""

    def __init__(self) -> None:
        self._by_producer: dict[str, int] = {}

    @property
    def records(self) -> int:
        """Records of all producers."""
        return sum(self._by_producer.values())

    def on_statistics(self, text: str) -> None:
        """Called by librdkafka."""
        statistics = json.loads(text)
        topics = statistics["topics"].values()
        records = sum(partition["txmsgs"] for topic in topics for partition in topic["partitions"].values())
        self._by_producer[statistics["name"]] = records


class Diary(logging.Handler):
    """librdkafka's debug log of its idempotence, on stderr; lines about duplicates are reported."""

    def __init__(self, pacer: Pacer) -> None:
        super().__init__()
        self.implied = 0
        self._pacer = pacer

    def emit(self, record: logging.LogRecord) -> None:
        """Called by librdkafka from poll and flush."""
        line = record.getMessage()
        print(f"{record.created:.3f} {line}", file=sys.stderr)
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
    producer = _new_producer(arguments, transmitted, logger)
    had_fatal = False
    while not pacer.is_stopped:
        if (error := _go_on(producer, arguments.topic, pacer)) is not None:
            pacer.started_over(f"fatal error: {error}")
            had_fatal = True
            _let_go(producer, pacer)
            producer = _new_producer(arguments, transmitted, logger)
        pause()
    _finish(producer, pacer, arguments.delivery_ms / 1000 + 5, had_fatal=had_fatal)
    pacer.implied(diary.implied)
    pacer.end(max(0, transmitted.records - pacer.sent))


def _go_on(producer: confluent_kafka.Producer, topic: str, pacer: Pacer) -> BaseException | None:
    """Send what is due, and hear what became of earlier records; the error that the producer cannot recover from."""
    try:
        for partition, number, value in pacer.next_burst():
            on_delivery = _settle(pacer, partition, number)
            try:
                producer.produce(topic, value, partition=partition, on_delivery=on_delivery)
            except confluent_kafka.KafkaException as error:
                pacer.failed(partition, number, error)
                return error
        producer.poll(0)
    except FATAL as error:
        return error
    return None


def _let_go(producer: confluent_kafka.Producer, pacer: Pacer) -> None:
    """Return when the producer holds no record. The report of a record can go down with the error."""
    producer.purge()
    while True:
        try:
            if producer.flush(1) == 0:
                break
        except FATAL as error:
            print(error, file=sys.stderr)
    for partition, number in list(pacer.open):
        pacer.failed(partition, number, "not reported after a fatal error")


def _finish(producer: confluent_kafka.Producer, pacer: Pacer, timeout_s: float, *, had_fatal: bool) -> None:
    """Every record gets its answer, if there was no fatal error. What poll would raise, `flush` raises when it ends,
    also after an hour: so it is asked again and again.
    """
    until, held = time.monotonic() + timeout_s, 1
    while held and time.monotonic() < until:
        try:
            held = producer.flush(1)
        except FATAL:
            held, had_fatal = 0, True
    if had_fatal and held == 0:
        _let_go(producer, pacer)


def _new_producer(arguments: Arguments, transmitted: Transmitted, logger: logging.Logger) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
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
            "debug": os.environ.get("TORTURE_LIBRDKAFKA_DEBUG", "eos"),
        },
        logger=logger,
    )


def _settle(pacer: Pacer, partition: int, number: int) -> Callable[[object, confluent_kafka.Message], None]:
    def delivered(error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            pacer.acknowledged(partition, number, message.offset())
        else:
            pacer.failed(partition, number, error)

    return delivered


if __name__ == "__main__":
    main()
