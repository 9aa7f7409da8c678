"""A topic is copied exactly once, by librdkafka, while agents are killed and the copier is replaced.

Fault model: SIGKILL of the agents one after another, which headrace dev does not start again; a copier that stops
without a word in a transaction, and a successor with its transactional id.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import defaultdict
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, TopicPartition

from load.dev_server import DevServer
from tests.compat.conftest import SETTINGS
from tests.confluent_records import consume

PARTITIONS, RECORDS, BATCH = 3, 600, 20
SECONDS_MAX = 300
FAST = {
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 3_000,
    "group.min.session.timeout.ms": 1_000,
}
QUIET = {"log_level": 0, "socket.timeout.ms": 5_000, "reconnect.backoff.max.ms": 500}


class Copier:
    """Consumes, copies and commits in one transaction for each batch; begins again after what it cannot continue
    with.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.copied = 0
        self._open()

    def _open(self) -> None:
        common = {"bootstrap.servers": self._bootstrap, **QUIET}
        self._producer = confluent_kafka.Producer(
            {**common, "transactional.id": "copy", "transaction.timeout.ms": 10_000, "linger.ms": 0}
        )
        self._producer.init_transactions(SECONDS_MAX)
        self._consumer = confluent_kafka.Consumer(
            {
                **common,
                "group.id": "copy",
                "session.timeout.ms": 2_000,
                "heartbeat.interval.ms": 200,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.subscribe(["source"])

    def replace(self) -> None:
        """Another one, while the former has an open transaction."""
        former = self._producer
        former.begin_transaction()
        former.produce("copy", "of a zombie", partition=0)
        former.flush(5)
        self._consumer.close()
        self._open()

    def step(self) -> None:
        """One batch, or nothing if there is none."""
        records = consume(self._consumer, BATCH, 0.5)
        if not records:
            return
        positions: dict[int, int] = {}
        try:
            self._producer.begin_transaction()
            for record in records:
                self._producer.produce("copy", record.value(), partition=record.partition())
                positions[record.partition()] = record.offset() + 1
            self._until_done(
                lambda: self._producer.send_offsets_to_transaction(
                    [TopicPartition("source", *each) for each in positions.items()],
                    self._consumer.consumer_group_metadata(),
                    10,
                )
            )
            self._until_done(lambda: self._producer.commit_transaction(10))
            self.copied += len(records)
        except KafkaException as error:
            cause = error.args[0]
            if cause.txn_requires_abort():
                self._until_done(lambda: self._producer.abort_transaction(10))
            self._consumer.close()
            self._open()

    def _until_done(self, call: object) -> None:
        """A call with an unknown outcome is repeated."""
        until = time.monotonic() + SECONDS_MAX
        while True:
            try:
                call()  # type: ignore[operator]
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise
            else:
                return

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.slow
@pytest.mark.requirement("X1")
def test_a_copy_is_exact_while_agents_are_killed(tmp_path: Path) -> None:
    with DevServer(tmp_path, agents=3, settings=SETTINGS | FAST) as server:
        for topic in ("source", "copy"):
            asyncio.run(server.create_topic(topic, PARTITIONS))
        feeder = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True, **QUIET})
        for number in range(RECORDS):
            feeder.produce("source", str(number), partition=number % PARTITIONS)
        assert feeder.flush(300) == 0
        faults = [
            (RECORDS // 4, lambda copier: os.kill(server.agents[1].pid, signal.SIGKILL)),
            (RECORDS // 2, lambda copier: copier.replace()),
            (RECORDS * 3 // 4, lambda copier: os.kill(server.agents[2].pid, signal.SIGKILL)),
        ]
        copier, until = Copier(server.bootstrap), time.monotonic() + SECONDS_MAX
        while copier.copied < RECORDS:
            assert time.monotonic() < until, f"copied={copier.copied}"
            copier.step()
            if faults and copier.copied >= faults[0][0]:
                faults.pop(0)[1](copier)
        copier.close()
        found = _copied(server.agents[0].kafka)
    for partition in range(PARTITIONS):
        assert found[partition] == [str(number) for number in range(partition, RECORDS, PARTITIONS)]
    assert not faults


def _copied(bootstrap: str) -> dict[int, list[str]]:
    """All that read_committed shows of the copy, by partition."""
    reader = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed", **QUIET}
    )
    reader.assign([TopicPartition("copy", partition, 0) for partition in range(PARTITIONS)])
    found: dict[int, list[str]] = defaultdict(list)
    until, last_at = time.monotonic() + 60, time.monotonic()
    while time.monotonic() < until and (sum(map(len, found.values())) < RECORDS or time.monotonic() - last_at < 3):
        for record in consume(reader, 100, 0.5):
            found[record.partition()].append(record.value().decode())
            last_at = time.monotonic()
    reader.close()
    return found
