"""Read both sides with librdkafka, and compare them record for record.

Invariant: a record is its offset, time, key, value and headers; digests of these are compared, for each partition in
the order in which a consumer with read_committed gets them.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

POLL_SECONDS = 1.0
SILENCE_POLLS = 120
MANY = 2_000
Row = tuple[int, bytes]
"""An offset, and the digest of all that the record has."""
Place = tuple[str, int]


def reader(bootstrap: str, group: str) -> Consumer:
    """A consumer that gets what was committed."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )


def row(message: Any) -> Row:
    """Return what is compared of a record."""
    parts = (message.timestamp(), message.key(), message.value(), message.headers())
    return message.offset(), hashlib.blake2b(repr(parts).encode(), digest_size=12).digest()


def ends(bootstrap: str, places: list[Place]) -> dict[Place, int]:
    """The high watermark of each partition."""
    consumer = reader(bootstrap, "ends")
    try:
        return {place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=60)[1] for place in places}
    finally:
        consumer.close()


def read_all(bootstrap: str, places: list[Place]) -> tuple[dict[Place, list[Row]], dict[Place, int]]:
    """Every record of the partitions, and the position that the consumer reached."""
    consumer = reader(bootstrap, "final")
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for topic, index in places])
        rows: dict[Place, list[Row]] = {place: [] for place in places}
        left, silent = set(places), 0
        while left:
            messages = consumer.consume(MANY, POLL_SECONDS)
            silent = 0 if messages else silent + 1
            if silent > SILENCE_POLLS:
                raise RuntimeError(f"nothing more comes of {sorted(left)}")
            for message in messages:
                place = str(message.topic()), int(message.partition() or 0)
                if message.error():
                    left.discard(place)
                else:
                    rows[place].append(row(message))
        positions = consumer.position([TopicPartition(*place) for place in places])
        return rows, {(each.topic, each.partition): each.offset for each in positions}
    finally:
        consumer.close()


class LiveReader(threading.Thread):
    """Reads the copy while it grows."""

    def __init__(self, bootstrap: str, places: list[Place]) -> None:
        super().__init__(name="live reader")
        self.rows: dict[Place, list[Row]] = {place: [] for place in places}
        self._here, self._stopping = bootstrap, threading.Event()

    def stop(self) -> None:
        """Return when it has ended."""
        self._stopping.set()
        self.join()

    def run(self) -> None:
        consumer = reader(self._here, "live")
        try:
            consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for topic, index in self.rows])
            while not self._stopping.is_set():
                for message in consumer.consume(MANY, POLL_SECONDS):
                    if not message.error():
                        self.rows[str(message.topic()), int(message.partition() or 0)].append(row(message))
        finally:
            consumer.close()


def differences(theirs: list[Row], ours: list[Row], where: str) -> list[str]:
    """Say what is not equal; empty: all is."""
    if theirs == ours:
        return []
    source, copy = dict(theirs), dict(ours)
    missing, more = sorted(source.keys() - copy.keys()), sorted(copy.keys() - source.keys())
    other = sorted(offset for offset in source.keys() & copy.keys() if source[offset] != copy[offset])
    found = [
        f"{where}: {what} at {len(offsets)} offsets, first {offsets[:5]}"
        for what, offsets in (("missing", missing), ("more", more), ("other records", other))
        if offsets
    ]
    return found or [f"{where}: the same records in another order, or twice"]
