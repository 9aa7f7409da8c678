"""A process that produces with librdkafka: `python -m headrace.cli.bench.produce_driver ORDER`.

Place: started by target_bench.py, so that the client's CPU is not the target's.
Invariant: a producer's records of a partition are numbered in the order in which they are produced. What still
waits in the client's queue when the time is over is dropped there and not counted: it was never sent.
"""

from __future__ import annotations

import random
import sys
from array import array

import msgspec
from confluent_kafka import KafkaError, Message, Producer

from headrace.cli.bench.orders import KEY, DriverInput, ProduceAnswer, ProduceOrder, first_number, percentile
from headrace.storage.clock import Clock, SystemClock

QUEUE = {"queue.buffering.max.kbytes": "131072", "queue.buffering.max.messages": "1000000"}
"""Enough for full batches of 12 partitions, and not so much that a slow target takes minutes to drain it."""
FLUSH_SECONDS = 120.0
WAIT_SECONDS = 0.01


def turn(count: int, producers: int, partitions: int) -> tuple[int, int]:
    """Return the producer and the partition of the record after `count` others. Pure.

    Partitions take turns if there are as many as producers, or more; else producers do, each with its own order of
    partitions.
    """
    if producers <= partitions:
        partition = count % partitions
        return partition % producers, partition
    producer = count % producers
    return producer, (count // producers + producer) % partitions


class ProduceDriver:
    """One producer or several, and what became of their records."""

    def __init__(self, order: ProduceOrder, clock: Clock, rng: random.Random) -> None:
        self._order = order
        self._clock = clock
        self._value = rng.randbytes(order.value_bytes)
        self._acknowledged = list(order.first_numbers) or [0] * order.partitions
        self._numbers = {
            (producer, partition): first_number(producer)
            for producer in range(order.producers)
            for partition in range(order.partitions)
        }
        self._numbers |= {(0, partition): number for partition, number in enumerate(order.first_numbers)}
        self._latencies = array("d")
        self._failed = 0
        self._first_error = ""
        settings = QUEUE | order.client | {"bootstrap.servers": order.bootstrap, "on_delivery": self._delivered}
        self._producers = [Producer(settings) for _ in range(order.producers)]

    def connect(self) -> None:
        """Send a record to each partition by each of its producers, so that connections and producer ids exist before
        the measured time.
        """
        order = self._order
        # By `turn`, each partition has one producer; if producers are more than partitions, each has all partitions.
        producers_of_each = order.producers if order.producers > order.partitions else 1
        for count in range(order.partitions * producers_of_each):
            self._produce(count)
        if self._flush(FLUSH_SECONDS) or self._failed:
            raise SystemExit(f"the first records failed: {self._first_error}")

    def run(self) -> ProduceAnswer:
        """Produce until the order's bounds; then wait for what was sent."""
        before = sum(self._acknowledged)
        del self._latencies[:]
        started = self._clock.monotonic()
        if self._order.one_at_a_time:
            self._run_one_at_a_time(started)
        else:
            self._run(started)
            left = started + self._order.seconds - self._clock.monotonic()
            self._flush(max(left, 0))
            for producer in self._producers:
                producer.purge(in_queue=True, in_flight=False, blocking=True)
        unanswered = self._flush(FLUSH_SECONDS)
        seconds = self._clock.monotonic() - started
        latencies = self._latencies
        return ProduceAnswer(
            records=sum(self._acknowledged) - before,
            seconds=seconds,
            numbers=self._acknowledged,
            failed=self._failed + unanswered,
            first_error=self._first_error or "no answer",
            p50_ms=percentile(latencies, 50) * 1000 if latencies else None,
            p99_ms=percentile(latencies, 99) * 1000 if latencies else None,
        )

    def _run(self, started: float) -> None:
        order, end = self._order, started + self._order.seconds
        for count in range(order.records):
            now = self._clock.monotonic()
            if order.rate:
                now = self._poll_until(started + count / order.rate)
            elif count % 100 == 0:
                self._poll(0)
            if now >= end:
                return
            while True:
                try:
                    self._produce(count)
                    break
                except BufferError:
                    self._poll(WAIT_SECONDS)
                    if self._clock.monotonic() >= end:
                        return

    def _run_one_at_a_time(self, started: float) -> None:
        end = started + self._order.seconds
        for count in range(self._order.records):
            if self._order.rate:
                self._poll_until(min(started + count / self._order.rate, end))
            if self._clock.monotonic() >= end:
                return
            self._produce(count)
            answered = len(self._latencies) + self._failed
            while len(self._latencies) + self._failed == answered:
                self._poll(1.0)

    def _produce(self, count: int) -> None:
        producer, partition = place = turn(count, len(self._producers), self._order.partitions)
        number = self._numbers[place]
        key = KEY.pack(number, self._clock.monotonic())
        self._producers[producer].produce(self._order.topic, self._value, key, partition)
        self._numbers[place] = number + 1

    def _poll(self, seconds: float) -> None:
        """Hear of answers; wait up to `seconds` for one of the last producer's."""
        *others, last = self._producers
        for producer in others:
            producer.poll(0)
        last.poll(seconds)

    def _poll_until(self, due: float) -> float:
        """Return the time, which is `due` or later."""
        while (now := self._clock.monotonic()) < due:
            self._poll(due - now)
        return now

    def _flush(self, seconds: float) -> int:
        """Send what waits; the number of records without an answer after `seconds`."""
        ends_at = self._clock.monotonic() + seconds
        return sum(producer.flush(max(ends_at - self._clock.monotonic(), 0)) for producer in self._producers)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            latency, partition = message.latency(), message.partition()
            assert latency is not None
            assert partition is not None
            self._latencies.append(latency)
            self._acknowledged[partition] += 1
        elif error.code() != KafkaError._PURGE_QUEUE:
            self._failed += 1
            self._first_error = self._first_error or str(error)


def main() -> None:
    """Prints `ready`, then, after `go`, the answer."""
    order = msgspec.json.decode(sys.argv[1], type=ProduceOrder)
    driver = ProduceDriver(order, SystemClock(), random.Random(1))
    driver.connect()
    DriverInput().ready()
    print(msgspec.json.encode(driver.run()).decode(), flush=True)


if __name__ == "__main__":
    main()
