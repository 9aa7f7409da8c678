"""An ordinary producer and an ordinary consumer during an attack, judged by counts and order, never by time.

The producer sends numbered records one after another and waits for each; the consumer of a group reads them. They
are well served if every number was acknowledged, none without an error is missing, and the consumer got all of them
in order.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "bystanders"
_PATIENCE_SECONDS = 60.0
_AT_WORK = 3


@dataclass
class Bystanders:
    """Threads, so that a busy attacker's event loop does not slow them down."""

    bootstrap: str
    acknowledged: list[int] = field(default_factory=list)
    consumed: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]

    def start(self) -> None:
        """Create the topic, and return once both are at work."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})  # a variable: without one, it ends before its answer
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        for thread in self._threads:
            thread.start()
        while len(self.consumed) < _AT_WORK and not self.failures:
            time.sleep(0.05)

    def stop(self) -> None:
        """Return when the consumer has what the producer sent."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def verdict(self) -> str:
        """Return what became of them."""
        if self.failures:
            return f"FAILED: {self.failures[0]}"
        if self.consumed != self.acknowledged:
            return f"FAILED: acknowledged {len(self.acknowledged)}, consumed {len(self.consumed)}, or in another order"
        return f"{len(self.acknowledged)} records acknowledged, consumed and in order"

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 0})
        number = 0
        while not self._over.is_set():
            done: list[object] = []
            producer.produce(TOPIC, str(number), on_delivery=partial(_append_error, done))
            producer.flush(_PATIENCE_SECONDS)
            if done != [None]:
                self.failures.append(f"producer: record {number}: {done}")
                return
            self.acknowledged.append(number)
            number += 1
            self._over.wait(0.01)

    def _consume(self) -> None:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": TOPIC, "auto.offset.reset": "earliest"})
        consumer.subscribe([TOPIC])
        silent = 0.0
        try:
            while silent < _PATIENCE_SECONDS:
                message = consumer.poll(0.2)
                if message is None or message.error() is not None:
                    silent += 0.2
                    producing = self._threads[0].is_alive()
                    if self._over.is_set() and not producing and len(self.consumed) >= len(self.acknowledged):
                        return
                    continue
                silent = 0.0
                value = message.value()
                assert value is not None
                self.consumed.append(int(value))
        except KafkaException as error:
            self.failures.append(f"consumer: {error}")
        finally:
            consumer.close()


def _append_error(done: list[object], error: object, _: object) -> None:
    done.append(error)
