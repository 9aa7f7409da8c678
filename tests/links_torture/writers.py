"""What is written at the source: an idempotent producer and one with transactions, at a steady rate.

Place: threads of run.py. librdkafka does the work.
Invariant: a writer never stops because of a kill: what failed is counted, and it starts over with another producer.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from typing import Any

from confluent_kafka import KafkaException, Producer

PLAIN, TRANSACTIONAL = "plain", "transactional"
PARTITIONS = 6
VALUE_BYTES = 1_000
TURN_SECONDS = 0.1
RECORDS_PER_TURN_MAX = 2_000
"""After a kill what is late is not all sent at once."""
DEADLINE_SECONDS = 90.0
ABORTED_SHARE = 0.2
CODECS = ("none", "lz4", "zstd")


class SourceWriter(threading.Thread):
    """Writes `bytes_per_s` until `stop`. `counts`: what was sent, acknowledged, committed, aborted, given up."""

    def __init__(self, name: str, bootstrap: str, bytes_per_s: int, rng: random.Random) -> None:
        super().__init__(name=name)
        self.topic = name
        self.counts: Counter[str] = Counter()
        self.stopping = threading.Event()
        self._source, self._rng = bootstrap, rng
        self._records_per_s = bytes_per_s / VALUE_BYTES
        self._numbers = itertools.count()

    def stop(self) -> None:
        """Return when it has ended."""
        self.stopping.set()
        self.join()

    def run(self) -> None:
        for life in itertools.count():
            if self.stopping.is_set():
                return
            try:
                self._live(life)
            except KafkaException as error:
                code = error.args[0]
                self.counts[f"started over: {code.name()}"] += 1
                self.stopping.wait(1.0)

    def _live(self, life: int) -> None:
        config: dict[str, Any] = {
            "bootstrap.servers": self._source,
            "compression.type": CODECS[life % len(CODECS)],
            "linger.ms": 20,
            "enable.idempotence": True,
            "delivery.timeout.ms": 60_000,
            "logger": _Quiet(),
        }
        if self.topic == TRANSACTIONAL:
            config |= {"transactional.id": "torture", "transaction.timeout.ms": 60_000}
        producer = Producer(config)
        if self.topic == TRANSACTIONAL:
            producer.init_transactions(DEADLINE_SECONDS)
        began = time.monotonic()
        while not self.stopping.wait(TURN_SECONDS):
            now = time.monotonic()
            due = min(round((now - began) * self._records_per_s), RECORDS_PER_TURN_MAX)
            began = now
            if self.topic == TRANSACTIONAL:
                self._transaction(producer, due)
            else:
                self._send(producer, due)
        producer.flush(DEADLINE_SECONDS)

    def _transaction(self, producer: Producer, records: int) -> None:
        try:
            producer.begin_transaction()
            self._send(producer, records)
            if self._rng.random() < ABORTED_SHARE:
                producer.flush(DEADLINE_SECONDS)
                producer.abort_transaction(DEADLINE_SECONDS)
                self.counts["aborted"] += 1
            else:
                producer.commit_transaction(DEADLINE_SECONDS)
                self.counts["committed"] += 1
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(DEADLINE_SECONDS)
            self.counts["aborted by an error"] += 1

    def _send(self, producer: Producer, records: int) -> None:
        for _ in range(records):
            number = next(self._numbers)
            value = b"%d " % number + self._rng.randbytes(VALUE_BYTES)
            while True:
                try:
                    producer.produce(
                        self.topic, value, b"k%d" % (number % 100), number % PARTITIONS,
                        on_delivery=self._note, headers=[("n", b"%d" % number)],
                    )  # fmt: skip
                    break
                except BufferError:
                    producer.poll(1.0)
                    if self.stopping.is_set():
                        return
            self.counts["sent"] += 1
        producer.poll(0)

    def _note(self, error: Any, message: Any) -> None:
        self.counts["acknowledged" if error is None else f"failed: {error.name()}"] += 1


class _Quiet:
    """A logger that keeps nothing: the client tells at length what the kills do to it."""

    def log(self, *_: object, **__: object) -> None:
        """Keep nothing."""
