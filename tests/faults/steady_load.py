"""Clients of two libraries that produce and read all the while, and what they saw.

Every producer is idempotent and numbers its records; every reader assigns itself all partitions, so that
what it sees twice was stored twice. Errors that a library hands to its user are kept: there must be none.
`trusted` is a file of certificates: the clients connect with TLS if it is given.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import aiokafka
import confluent_kafka

from tests.confluent_records import passes

PARTITIONS = 6
PAUSE_SECONDS = 0.01
PATIENCE_SECONDS = 300


@dataclass
class Seen:
    """One client's story. Times are time.monotonic()."""

    name: str
    sent: int = 0
    acknowledged: list[tuple[float, int]] = field(default_factory=list)
    """(when, number)."""
    read: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(partition, offset, value)."""
    errors: list[str] = field(default_factory=list)

    def longest_silence(self) -> float:
        """Seconds that some partition was without an acknowledgement, at the most."""
        longest = 0.0
        for partition in range(PARTITIONS):
            times = sorted(when for when, number in self.acknowledged if number % PARTITIONS == partition)
            longest = max([longest, *(after - before for before, after in itertools.pairwise(times))])
        return longest


def _confluent_security(trusted: str) -> dict[str, str]:
    return {"security.protocol": "SSL", "ssl.ca.location": trusted} if trusted else {}


def _aiokafka_security(trusted: str) -> dict[str, object]:
    if not trusted:
        return {}
    return {"security_protocol": "SSL", "ssl_context": ssl.create_default_context(cafile=trusted)}


class ConfluentProducer:
    """librdkafka, in a thread."""

    def __init__(self, bootstrap: str, topic: str, trusted: str = "") -> None:
        self.seen = Seen("confluent")
        self._topic = topic
        self._stopping = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
                "message.timeout.ms": PATIENCE_SECONDS * 1000,
                "socket.timeout.ms": 4_000,
                "request.timeout.ms": 3_000,
                **_confluent_security(trusted),
            }
        )
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Deliver what was sent."""
        self._stopping.set()
        self._thread.join()
        if left := self._producer.flush(PATIENCE_SECONDS):
            self.seen.errors.append(f"{left} records were neither delivered nor failed")

    def _run(self) -> None:
        while not self._stopping.is_set():
            number = self.seen.sent
            self._producer.produce(
                self._topic,
                b"confluent-%d" % number,
                partition=number % PARTITIONS,
                on_delivery=partial(self._delivered, number),
            )
            self.seen.sent += 1
            self._producer.poll(PAUSE_SECONDS)

    def _delivered(self, number: int, error: object, message: object) -> None:
        if error is not None:
            self.seen.errors.append(f"{number}: {error}")
        else:
            self.seen.acknowledged.append((time.monotonic(), number))


class AiokafkaProducer:
    """aiokafka, on the test's loop."""

    def __init__(self, bootstrap: str, topic: str, trusted: str = "") -> None:
        self.seen = Seen("aiokafka")
        self._topic = topic
        self._stopping = asyncio.Event()
        self._producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            request_timeout_ms=4_000,
            metadata_max_age_ms=2_000,
            **_aiokafka_security(trusted),
        )

    async def start(self) -> None:
        await self._producer.start()
        self._sending = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Deliver what was sent."""
        self._stopping.set()
        await asyncio.wait_for(self._sending, PATIENCE_SECONDS)
        await self._producer.stop()

    async def _run(self) -> None:
        waiting: set[asyncio.Task[None]] = set()
        while not self._stopping.is_set():
            number = self.seen.sent
            future = await self._producer.send(self._topic, b"aiokafka-%d" % number, partition=number % PARTITIONS)
            waiting.add(asyncio.create_task(self._delivered(future, number)))
            self.seen.sent += 1
            await asyncio.sleep(PAUSE_SECONDS)
        await asyncio.gather(*waiting)

    async def _delivered(self, future: asyncio.Future[object], number: int) -> None:
        try:
            await future
        except aiokafka.errors.KafkaError as error:
            self.seen.errors.append(f"{number}: {error!r}")
        else:
            self.seen.acknowledged.append((time.monotonic(), number))


class ConfluentReader:
    """librdkafka, in a thread; reads on until it has seen `wanted` records."""

    def __init__(self, bootstrap: str, topic: str, trusted: str = "") -> None:
        self.seen = Seen("confluent")
        self._wanted: int | None = None
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "nobody",
                "enable.auto.commit": False,
                "socket.timeout.ms": 4_000,
                "reconnect.backoff.max.ms": 500,
                **_confluent_security(trusted),
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def finish(self, wanted: int) -> None:
        self._wanted = wanted
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        until: float | None = None
        while self._wanted is None or len(self.seen.read) < self._wanted:
            if self._wanted is not None:
                until = until or time.monotonic() + PATIENCE_SECONDS
                if time.monotonic() > until:
                    return
            for message in self._consumer.consume(500, 0.2):
                error = message.error()
                if error is None:
                    partition, offset, value = message.partition(), message.offset(), message.value()
                    assert partition is not None
                    assert offset is not None
                    assert value is not None
                    self.seen.read.append((partition, offset, value))
                elif not passes(error):
                    self.seen.errors.append(str(error))


class AiokafkaReader:
    """aiokafka, on the test's loop; reads on until it has seen `wanted` records."""

    def __init__(self, bootstrap: str, topic: str, trusted: str = "") -> None:
        self.seen = Seen("aiokafka")
        self._topic = topic
        self._wanted: int | None = None
        self._consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            request_timeout_ms=4_000,
            metadata_max_age_ms=2_000,
            **_aiokafka_security(trusted),
        )

    async def start(self) -> None:
        await self._consumer.start()
        self._consumer.assign([aiokafka.TopicPartition(self._topic, p) for p in range(PARTITIONS)])
        self._reading = asyncio.create_task(self._run())

    async def finish(self, wanted: int) -> None:
        self._wanted = wanted
        try:
            await asyncio.wait_for(self._reading, PATIENCE_SECONDS)
        except TimeoutError:
            self.seen.errors.append(f"read only {len(self.seen.read)} of {wanted} records")
        await self._consumer.stop()

    async def _run(self) -> None:
        while self._wanted is None or len(self.seen.read) < self._wanted:
            try:
                batches = await self._consumer.getmany(timeout_ms=200)
            except aiokafka.errors.KafkaError as error:
                self.seen.errors.append(repr(error))
                return
            for partition, records in batches.items():
                self.seen.read += [(partition.partition, record.offset, record.value) for record in records]


@dataclass
class Load:
    """All four clients on one topic."""

    bootstrap: str
    topic: str
    trusted: str = ""

    async def __aenter__(self) -> Load:
        self._confluent = ConfluentProducer(self.bootstrap, self.topic, self.trusted)
        self._aiokafka = AiokafkaProducer(self.bootstrap, self.topic, self.trusted)
        self._confluent_reader = ConfluentReader(self.bootstrap, self.topic, self.trusted)
        self._aiokafka_reader = AiokafkaReader(self.bootstrap, self.topic, self.trusted)
        self.producers = [self._confluent.seen, self._aiokafka.seen]
        self.readers = [self._confluent_reader.seen, self._aiokafka_reader.seen]
        await self._aiokafka.start()
        await self._aiokafka_reader.start()
        self._confluent.start()
        self._confluent_reader.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(self._aiokafka.stop(), asyncio.to_thread(self._confluent.stop))
        wanted = sum(producer.sent for producer in self.producers)
        await asyncio.gather(
            self._aiokafka_reader.finish(wanted), asyncio.to_thread(self._confluent_reader.finish, wanted)
        )

    async def until_acknowledged(self, more: int) -> None:
        """Wait until each producer has learned of so many more of its records."""
        wanted = [len(seen.acknowledged) + more for seen in self.producers]
        until = time.monotonic() + PATIENCE_SECONDS
        while any(len(seen.acknowledged) < count for seen, count in zip(self.producers, wanted, strict=True)):
            assert time.monotonic() < until, [(seen.name, seen.sent, len(seen.acknowledged)) for seen in self.producers]
            await asyncio.sleep(PAUSE_SECONDS)

    def assert_nothing_went_wrong(self) -> None:
        """No error for a user, each record acknowledged, stored once, and read once, in its producer's order."""
        assert [seen.errors for seen in (*self.producers, *self.readers)] == [[], [], [], []]
        expected: Counter[bytes] = Counter()
        for producer in self.producers:
            assert sorted(number for _, number in producer.acknowledged) == list(range(producer.sent))
            assert producer.sent > 100
            expected.update(f"{producer.name}-{number}".encode() for number in range(producer.sent))
        for reader in self.readers:
            assert Counter(value for _, _, value in reader.read) == expected
            for partition in range(PARTITIONS):
                rows = [(offset, value) for p, offset, value in reader.read if p == partition]
                assert [offset for offset, _ in rows] == list(range(len(rows)))
                for producer in self.producers:
                    own = [int(v.rpartition(b"-")[2]) for _, v in rows if v.startswith(producer.name.encode())]
                    assert own == sorted(own)
