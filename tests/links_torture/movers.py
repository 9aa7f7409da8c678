"""Groups that move: each consumes at the source for a while, stops there, and goes on here, under the kills.

Place: a thread of run.py. librdkafka does the work.
Invariant: where a group begins here is never above what it committed at the source last, and there is always an offset:
so no record is left out. It may be below if no worker was there to copy the last ones, which is counted.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.links_torture.reading import Place

RECORDS_MAX = 5_000
READ_SECONDS = 8.0
JOIN_SECONDS = 120.0
POLL_SECONDS = 1.0
PROTOCOLS = ("classic", "consumer")


class GroupMover(threading.Thread):
    """Moves one group after another until `stop`. `counts`: what became of them; `offences`: what must not be."""

    def __init__(
        self, source: str, here: str, topics: list[str], is_copied: Callable[[str], bool], rng: random.Random
    ) -> None:
        """`is_copied`: whether the link has copied offsets of a group."""
        super().__init__(name="groups that move")
        self._source, self._here, self._topics, self._is_copied = source, here, topics, is_copied
        self._rng = rng
        self._stopping = threading.Event()
        self.counts: Counter[str] = Counter()
        self.offences: list[str] = []

    def stop(self) -> None:
        """Return when the group that moves has moved."""
        self._stopping.set()
        self.join()

    def run(self) -> None:
        for number in itertools.count():
            if self._stopping.wait(self._rng.uniform(0.0, 5.0)):
                return
            try:
                self._move(f"mover-{number}", PROTOCOLS[number % 2])
            except KafkaException as error:
                self.counts[f"given up: {error.args[0].name()}"] += 1

    def _move(self, group: str, protocol: str) -> None:
        self._consume(self._source, group, protocol, {})
        while not self._is_copied(group):
            if self._stopping.wait(1.0):
                return
        there = self._consume(self._source, group, protocol, {})  # so that the last offsets are newer than the copy
        began: dict[Place, int] = {}
        self._consume(self._here, group, protocol, began)
        if not began:
            self.counts["not assigned in time"] += 1
            return
        for place, committed in there.items():
            if not 0 <= began.get(place, committed) <= committed:
                self.offences.append(f"{group} {place}: it committed {committed} and began at {began[place]}")
        is_older = any(began.get(place, committed) < committed for place, committed in there.items())
        self.counts["began at older offsets" if is_older else "went on where it stopped"] += 1

    def _consume(self, bootstrap: str, group: str, protocol: str, began: dict[Place, int]) -> dict[Place, int]:
        """Read for a while and commit; what was committed. `began` gets where the group's offsets were."""
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest" if bootstrap == self._source else "latest",
        }
        consumer, seen = Consumer(config), 0
        try:
            consumer.subscribe(
                self._topics, on_assign=lambda own, partitions: began.update(_committed(own, partitions))
            )
            until, enough = time.monotonic() + JOIN_SECONDS, self._rng.randrange(500, RECORDS_MAX)
            while seen < enough and time.monotonic() < until:
                messages = consumer.consume(500, POLL_SECONDS)
                good = [message for message in messages if message.error() is None]
                if good and not seen:
                    until = time.monotonic() + READ_SECONDS
                seen += len(good)
            if not seen:
                return {}
            done = consumer.commit(asynchronous=False) or ()
            return {(each.topic, each.partition): each.offset for each in done if each.offset >= 0}
        finally:
            consumer.close()


def _committed(consumer: Any, partitions: list[TopicPartition]) -> dict[Place, int]:
    return {(each.topic, each.partition): each.offset for each in consumer.committed(partitions, timeout=60)}
