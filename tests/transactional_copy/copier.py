"""librdkafka as a copier: consumes, copies and commits its offsets in one transaction for each batch.

Place: the process that tests/transactional_copy/copiers.py starts, kills and replaces:
`copier BOOTSTRAP GROUP NAME INCARNATION SEED`. NAME is the transactional id. A record `producer/partition/number` is
copied as `NAME.INCARNATION.COUNT/partition/number`, to the partition that it has in the input: a transaction's records
have its tag. It prints what it does before it does it: `begin TAG partition:number,...`, `ending TAG`; and, once it
knows, `committed TAG` or `aborted TAG`. `again CALL ERROR` is a call that it repeats. It ends when its input ends; and
with status 3 after `over REASON`, when only a new producer can continue.
Invariants: a batch has records of one assignment, and its offsets are committed as the member that got it: rebalances
happen in poll, as there is a callback. The member's generation is remembered then: when librdkafka loses its membership
it forgets both at once, and offsets without them are not checked. The producer is initialised before any position is
read: a new life of the metastore between the two fails the first transaction.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

INPUT, OUTPUT = "input", "copy"
BATCH = 40
ABORTED_SHARE = 0.15
"""Share of the transactions that are aborted on purpose."""
TRANSACTION_MS = 15_000
TAKE_SECONDS = 0.2
CALL_SECONDS = 5.0
AGAIN_SECONDS = 0.1
STUCK_SECONDS = 30.0
"""After which a call of CALL_SECONDS is taken as one that does not return: librdkafka's send_offsets_to_transaction may
wait without limit for a coordinator that left the cluster (its issues 5456 and 5511, open for 2.16)."""
PATIENCE_SECONDS = 240.0
OVER = 3
"""The exit status of a copier that another one replaces."""


class LibrdkafkaCopier:
    """Librdkafka copier of one incarnation. `step` copies a batch, if there is one."""

    def __init__(self, bootstrap: str, group: str, name: str, incarnation: int, rng: random.Random) -> None:
        self._tag = f"{name}.{incarnation}"
        self._rng = rng
        self._begun = 0
        self._batch: list[confluent_kafka.Message] = []
        self._member: Any = None
        common = {
            "bootstrap.servers": bootstrap,
            "socket.timeout.ms": 3_000,
            "reconnect.backoff.max.ms": 500,
            "retry.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1_000,
            "log_level": 0,
        }
        self._producer = confluent_kafka.Producer(
            {**common, "transactional.id": name, "transaction.timeout.ms": TRANSACTION_MS, "linger.ms": 2}
        )
        self._until_known("init", lambda: self._producer.init_transactions(CALL_SECONDS))
        self._consumer = confluent_kafka.Consumer(
            {
                **common,
                "group.id": group,
                "session.timeout.ms": 4_000,
                "heartbeat.interval.ms": 500,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.subscribe([INPUT], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)

    def step(self) -> None:
        """KafkaException when this producer cannot continue."""
        batch = self._take()
        if not batch:
            return
        self._begun += 1
        tag = f"{self._tag}.{self._begun}"
        names = [message.value().decode().split("/", 1)[1] for message in batch]  # type: ignore[union-attr]
        tell(f"begin {tag} {','.join(name.replace('/', ':') for name in names)}")
        try:
            self._copy(tag, batch, names)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._abort(tag)

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _copy(self, tag: str, batch: list[confluent_kafka.Message], names: list[str]) -> None:
        self._producer.begin_transaction()
        positions: dict[int, int] = {}
        for message, name in zip(batch, names, strict=True):
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self._producer.produce(OUTPUT, f"{tag}/{name}", partition=partition)
            positions[partition] = offset + 1
        draw = self._rng.random()
        if draw < ABORTED_SHARE / 2:  # before the records arrived
            self._abort(tag)
            return
        offsets = [TopicPartition(INPUT, *each) for each in positions.items()]
        self._until_known(
            "send_offsets", lambda: self._producer.send_offsets_to_transaction(offsets, self._member, CALL_SECONDS)
        )
        if draw < ABORTED_SHARE:  # with the records and the offsets
            self._producer.flush(CALL_SECONDS)
            self._abort(tag)
            return
        tell(f"ending {tag}")
        self._until_known("commit", lambda: self._producer.commit_transaction(CALL_SECONDS))
        tell(f"committed {tag}")

    def _take(self) -> list[confluent_kafka.Message]:
        """A batch of one assignment, empty if no record comes in time."""
        self._batch = []
        until = time.monotonic() + TAKE_SECONDS
        while len(self._batch) < BATCH and time.monotonic() < until:
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self._batch.append(message)
        return self._batch

    def _abort(self, tag: str) -> None:
        """Abort, and go back to what is committed. Rebalances happen in poll, so no other thread moves a position."""
        self._until_known("abort", lambda: self._producer.abort_transaction(CALL_SECONDS))
        tell(f"aborted {tag}")
        assigned = self._consumer.assignment()
        for place in self._until_known("committed", lambda: self._consumer.committed(assigned, CALL_SECONDS)):
            if place.error is not None:
                raise KafkaException(place.error)
            self._consumer.seek(TopicPartition(place.topic, place.partition, max(0, place.offset)))

    def _on_assign(self, consumer: confluent_kafka.Consumer, places: list[TopicPartition]) -> None:
        self._batch.clear()
        self._member = consumer.consumer_group_metadata()

    def _on_revoke(self, consumer: confluent_kafka.Consumer, places: list[TopicPartition]) -> None:
        self._batch.clear()

    def _until_known(self, name: str, call: Callable[[], Any]) -> Any:
        """Repeat a call while its outcome is unknown. One that does not return ends this process as a crash does."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            watch = threading.Timer(STUCK_SECONDS, lambda: end(f"{name} does not return"))
            watch.start()
            try:
                return call()
            except KafkaException as error:
                if not is_passing(error.args[0]) or time.monotonic() > until:
                    raise
                tell(f"again {name} {error.args[0].name()}")
                time.sleep(AGAIN_SECONDS)
            finally:
                watch.cancel()


def is_passing(error: KafkaError) -> bool:
    """Return whether the call may be repeated: librdkafka marks calls of transactions, and times others out."""
    return error.retriable() or (error.code() == KafkaError._TIMED_OUT and not error.fatal())


def tell(line: str) -> None:
    """Send a line to the process that started this one, at once."""
    sys.stdout.write(line.replace("\n", " ") + "\n")
    sys.stdout.flush()


def end(reason: str) -> NoReturn:
    """Let another process take over, as after a crash: nothing is closed."""
    tell(f"over {reason}")
    os._exit(OVER)


def main() -> NoReturn:
    """Copy until the input ends."""
    bootstrap, group, name, incarnation, seed = sys.argv[1:]
    stopped = threading.Event()
    faulthandler.register(signal.SIGUSR1)  # says where it is, before it is killed because it does not end

    def await_end_of_input() -> None:
        sys.stdin.buffer.read()
        stopped.set()

    threading.Thread(target=await_end_of_input, daemon=True).start()
    try:
        copier = LibrdkafkaCopier(bootstrap, group, name, int(incarnation), random.Random(f"{seed} {incarnation}"))
        while not stopped.is_set():
            copier.step()
        copier.close()
    except KafkaException as error:
        end(error.args[0].name())
    os._exit(0)  # the reader of the input would disturb the end of the interpreter


if __name__ == "__main__":
    main()
