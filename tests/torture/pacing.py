"""What all Python writers share: numbered records at a pace, until told to stop, told line by line.

Place: inside a writer's process. A writer is `program BOOTSTRAP TOPIC PARTITIONS RATE DELIVERY_MS`. It
prints `ack PARTITION NUMBER OFFSET` (OFFSET -1: stored, and the client does not say where) or `fail PARTITION
NUMBER REASON` for each record and, last, `end SENT RETRIES` (RETRIES -1: the client does not count them). It stops
sending when its input ends. librdkafka's also prints `implied COUNT`, librdkafka's and Java's
`over REASON`: see `Pacer`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

OUTSTANDING_MAX = 1_000
"""Records without an answer; above it a writer waits, as an application would."""
TICK_S = 0.02
NOWHERE = -1
"""Replaces the offset of an acknowledged record if the client does not know it."""


class Arguments(NamedTuple):
    """The command line; `rate` in records/s, `delivery_ms` until a client may give a record up."""

    bootstrap: str
    topic: str
    partitions: int
    rate: int
    delivery_ms: int

    @classmethod
    def read(cls) -> Arguments:
        """Read the arguments from sys.argv."""
        bootstrap, topic, *numbers = sys.argv[1:]
        return cls(bootstrap, topic, *map(int, numbers))


class Pacer:
    """Hands out (partition, number) at the asked rate, and prints what became of them."""

    def __init__(self, producer: str, arguments: Arguments) -> None:
        self._producer = producer
        self._partitions = arguments.partitions
        self._per_tick = max(1, round(arguments.rate * TICK_S))
        self.sent = 0
        self.open: set[tuple[int, int]] = set()
        """(partition, number) of records without an answer."""
        self._stop = threading.Event()
        threading.Thread(target=self._await_end_of_input, daemon=True).start()

    @property
    def is_stopped(self) -> bool:
        """No more records are wanted."""
        return self._stop.is_set()

    def next_burst(self) -> Iterator[tuple[int, int, bytes]]:
        """(partition, number, value) of what is due in this tick."""
        for _ in range(self._per_tick):
            if len(self.open) >= OUTSTANDING_MAX:
                return
            number, partition = divmod(self.sent, self._partitions)
            self.sent += 1
            self.open.add((partition, number))
            yield partition, number, f"{self._producer}/{partition}/{number}".encode()

    def acknowledged(self, partition: int, number: int, offset: int | None) -> None:
        """The client said that the record is stored, and where if it knows."""
        _print(f"ack {partition} {number} {NOWHERE if offset is None else offset}")
        self.open.discard((partition, number))

    def implied(self, count: int) -> None:
        """Number of records that the client treated as stored without an answer for them."""
        _print(f"implied {count}")

    def failed(self, partition: int, number: int, error: object) -> None:
        """The client gave it up: stored or not."""
        _print(f"fail {partition} {number} {error!s}")
        self.open.discard((partition, number))

    def started_over(self, reason: str) -> None:
        """The client continues under a new producer epoch or id: what it repeats from then on, no broker can tell."""
        _print(f"over {reason}")

    def end(self, retries: int) -> None:
        """Everything has its answer."""
        _print(f"end {self.sent} {retries}")

    def _await_end_of_input(self) -> None:
        while os.read(0, 4096):  # not sys.stdin: Python may end while this thread holds its lock, and aborts then
            pass
        self._stop.set()


def pause() -> None:
    """Pause until the next tick."""
    time.sleep(TICK_S)


def _print(line: str) -> None:
    sys.stdout.write(line.replace("\n", " ") + "\n")
    sys.stdout.flush()
