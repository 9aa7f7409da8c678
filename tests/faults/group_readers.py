"""Members of classic groups by three client libraries, each in a separate thread.

Every reader notes each record that it was handed and each time that its library told it of a change of
its partitions. Positions are committed by the libraries themselves, twice a second.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import aiokafka
import confluent_kafka
import kafka

COMMIT_INTERVAL_MS = 500
SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_MS = 500
JOIN_TIMEOUT_MS = 5_000


class Reader(ABC):
    """One member; started at once, readable from any thread, ended by `close`."""

    name: ClassVar[str]

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.bootstrap, self.group, self.topic = bootstrap, group, topic
        self.values: list[int] = []
        self.changes: list[str] = []
        self.partitions: set[int] = set()
        self.failure: BaseException | None = None
        self.closing = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the group, its last positions committed; raises what ended the reader before."""
        self.closing.set()
        self._thread.join(300)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        if self.failure is not None:
            raise self.failure

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.failure = error

    @abstractmethod
    def run(self) -> None:
        """Run until `closing`."""

    def _assigned(self, partitions: Any) -> None:
        self.partitions |= {each.partition for each in partitions}
        self.changes.append(f"assigned {sorted(each.partition for each in partitions)}")

    def _revoked(self, partitions: Any) -> None:
        self.partitions -= {each.partition for each in partitions}
        self.changes.append(f"revoked {sorted(each.partition for each in partitions)}")


class _Confluent(Reader):
    strategy: ClassVar[str]

    def run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "partition.assignment.strategy": self.strategy,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": COMMIT_INTERVAL_MS,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
                "socket.timeout.ms": 4_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        consumer.subscribe(
            [self.topic],
            on_assign=lambda _, partitions: self._assigned(partitions),
            on_revoke=lambda _, partitions: self._revoked(partitions),
        )
        while not self.closing.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.values.append(int(message.value() or b""))
        consumer.close()


class ConfluentEager(_Confluent):
    name = "confluent-eager"
    strategy = "range"


class ConfluentCooperative(_Confluent):
    name = "confluent-cooperative"
    strategy = "cooperative-sticky"


class KafkaPython(Reader):
    """kafka-python 3.0.12 forgets a join that lasts longer than its `poll`, if new metadata caused it: its leader
    takes note of the metadata as it shares out, sees no reason to rejoin in the next `poll`, and drops the answer of
    SyncGroup, its heartbeats still off (kafka/coordinator/base.py, `while self.need_rejoin()`). The coordinator then
    has to put it out, and it never comes back. So a poll is long while there is nothing to read.
    """

    name = "kafka-python"

    def run(self) -> None:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=COMMIT_INTERVAL_MS,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            reconnect_backoff_max_ms=500,
        )
        consumer.subscribe([self.topic], listener=_listener(kafka.ConsumerRebalanceListener, self))
        while not self.closing.is_set():
            try:
                polled = consumer.poll(timeout_ms=100 if self.partitions else JOIN_TIMEOUT_MS)
            except kafka.errors.KafkaConnectionError:  # it leaves the retry to its caller
                continue
            for records in polled.values():
                self.values += [int(record.value) for record in records]
        consumer.close()


class Aiokafka(Reader):
    name = "aiokafka"

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=COMMIT_INTERVAL_MS,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            request_timeout_ms=4_000,
        )
        consumer.subscribe([self.topic], listener=_listener(aiokafka.ConsumerRebalanceListener, self))
        await consumer.start()
        while not self.closing.is_set():
            for records in (await consumer.getmany(timeout_ms=100)).values():
                self.values += [int(record.value) for record in records if record.value is not None]
        await consumer.stop()


def _listener(base: type, reader: Reader) -> Any:
    return type(
        "Listener",
        (base,),
        {
            "on_partitions_assigned": lambda _, assigned: reader._assigned(assigned),
            "on_partitions_revoked": lambda _, revoked: reader._revoked(revoked),
        },
    )()


READERS: list[Callable[[str, str, str], Reader]] = [ConfluentEager, ConfluentCooperative, KafkaPython, Aiokafka]
