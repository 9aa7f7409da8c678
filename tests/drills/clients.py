"""An ordinary producer and an ordinary consumer during a drill or a flood: what they notice, and for how long.

Place: used by tests/drills/run.py and tests/flood/. librdkafka with its defaults, but for idempotence, which Java has
by default.
Invariant: the producer numbers its records; at the end the consumer must have each acknowledged one once, in the
order of its partition.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer

TOPIC, PARTITIONS = "drill", 6
"""More partitions than agents: each agent leads some."""
QUIET: dict[str, Any] = {"log_level": 2}
"""librdkafka writes nothing; what it reports is counted."""
SEND_SECONDS = 0.05
CATCH_UP_SECONDS = 60.0


@dataclass
class Gap:
    """The longest time without an event, and when the last one was."""

    last: float = field(default_factory=time.monotonic)
    longest: float = 0.0

    def event(self) -> None:
        """One more."""
        now = time.monotonic()
        self.longest, self.last = max(self.longest, now - self.last), now

    def begin(self) -> None:
        """Measure from now on."""
        self.longest, self.last = 0.0, time.monotonic()


class DrillClients:
    """Threads, from `start` to `stop`. `errors`: what the libraries reported to their users, by name."""

    def __init__(self, bootstrap: str, *, idempotent: bool = True) -> None:
        """`idempotent`: the producer. librdkafka's ends with an error where acknowledged batches are lost."""
        self._bootstrap, self._idempotent = bootstrap, idempotent
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]
        self.acknowledged: list[int] = []
        self.given_up: Counter[str] = Counter()
        self.consumed: list[int] = []
        self.errors: Counter[str] = Counter()
        self.acks, self.reads = Gap(), Gap()

    def start(self) -> None:
        """Begin to send and to read."""
        for thread in self._threads:
            thread.start()

    def begin(self) -> None:
        """Count errors and gaps from now on."""
        self.errors.clear()
        self.acks.begin()
        self.reads.begin()

    def stop(self) -> None:
        """Return when the consumer has everything, or got nothing for a minute."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def are_sound(self) -> bool:
        """Whether each acknowledged record was read, once and in order."""
        return not self._missing and not self._twice and self._in_order

    @property
    def _missing(self) -> set[int]:
        return set(self.acknowledged) - set(self.consumed)

    @property
    def _twice(self) -> int:
        return len(self.consumed) - len(set(self.consumed))

    @property
    def _in_order(self) -> bool:
        by_partition = [
            [number for number in self.consumed if number % PARTITIONS == index] for index in range(PARTITIONS)
        ]
        return all(numbers == sorted(numbers) for numbers in by_partition)

    def lines(self) -> list[str]:
        """The report."""
        in_order = "in order" if self._in_order else "OUT OF ORDER"
        errors = ", ".join(f"{name} {count}" for name, count in sorted(self.errors.items())) or "none"
        given_up = ", ".join(f"{name} {count}" for name, count in sorted(self.given_up.items())) or "none"
        return [
            f"producer: {len(self.acknowledged)} acknowledged, given up: {given_up}; longest wait for an"
            f" acknowledgement {self.acks.longest:.1f} s",
            f"consumer: {len(self.consumed)} read {in_order}, acknowledged and missing: {len(self._missing)},"
            f" twice: {self._twice}; longest wait for a record {self.reads.longest:.1f} s",
            f"librdkafka told both: {errors}",
        ]

    def _error(self, error: KafkaError) -> None:
        self.errors[error.name()] += 1

    def _produce(self) -> None:
        producer = Producer(
            QUIET
            | {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": self._idempotent,
                "linger.ms": 0,
                "error_cb": self._error,
            }
        )
        number = 0
        while not self._over.is_set():
            try:
                producer.produce(TOPIC, str(number), partition=number % PARTITIONS, on_delivery=self._delivered)
                number += 1
            except BufferError:  # its queue is full: Java would block here
                self.errors["queue full"] += 1
            producer.poll(0)
            self._over.wait(SEND_SECONDS)
        producer.flush(CATCH_UP_SECONDS)

    def _delivered(self, error: KafkaError | None, message: object) -> None:
        if error is not None:
            self.given_up[error.name()] += 1
            return
        value = message.value()  # type: ignore[attr-defined]
        self.acknowledged.append(int(value))
        self.acks.event()

    def _consume(self) -> None:
        consumer = Consumer(
            QUIET
            | {
                "bootstrap.servers": self._bootstrap,
                "group.id": TOPIC,
                "auto.offset.reset": "earliest",
                "error_cb": self._error,
            }
        )
        consumer.subscribe([TOPIC])
        silent_since = time.monotonic()
        while not self._is_done(silent_since):
            message = consumer.poll(0.2)
            if message is None:
                continue
            if (error := message.error()) is not None:
                self._error(error)
                continue
            value = message.value()
            assert value is not None
            self.consumed.append(int(value))
            self.reads.event()
            silent_since = time.monotonic()
        consumer.close()

    def _is_done(self, silent_since: float) -> bool:
        if not self._over.is_set() or self._threads[0].is_alive():
            return False
        has_all = len(set(self.consumed)) >= len(self.acknowledged)
        return has_all or time.monotonic() - silent_since > CATCH_UP_SECONDS
