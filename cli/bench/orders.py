"""What a driver process is asked to do, with its answer, as JSON.

Place: between target_bench.py (the bench) and produce_driver.py, consume_driver.py (processes with librdkafka). A
driver waits for `go` on standard input, and gets `until N` later.
Invariant: times within one order are of one machine's monotonic clock, so that a consumer can subtract the time that
a producer wrote into a record's key.
Invariant of standard input: a driver ends when the bench does: end of input ends the process.
"""

from __future__ import annotations

import math
import os
import struct
import sys
import threading
from collections.abc import Sequence

import msgspec

KEY = struct.Struct(">qd")
"""A record's key: its producer and number (see `producer_of`), and when it was produced (monotonic seconds)."""
PRODUCER_BITS = 40
"""Bits of a record's number; those above are its producer's."""
OFFSETS, NUMBERS, NOTHING = "offsets", "numbers", "nothing"
"""What a consumer checks: consecutive offsets, each number once and in order, or only how many records there are."""


def first_number(producer: int) -> int:
    """Return the number of a producer's first record in a partition; the next ones follow. Pure."""
    return producer << PRODUCER_BITS


def producer_of(number: int) -> tuple[int, int]:
    """Return a record's producer, and its number among the producer's records of its partition. Pure."""
    return number >> PRODUCER_BITS, number & ((1 << PRODUCER_BITS) - 1)


class ProduceOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Produce to all partitions in turns until `seconds` are over or `records` are produced."""

    bootstrap: str
    topic: str
    partitions: int
    value_bytes: int
    seconds: float
    records: int
    client: dict[str, str]
    rate: float = 0
    one_at_a_time: bool = False
    first_numbers: list[int] = []
    """First numbers of each partition, if it has records already."""
    producers: int = 1
    """Clients, each for its share of the partitions, or, if there are more of them, each for all partitions."""


class ProduceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`numbers`: how many records of each partition are acknowledged, those before the order included."""

    records: int
    """Acknowledged within `seconds`; one per partition, sent before the start, is left out."""
    seconds: float
    numbers: list[int]
    failed: int
    first_error: str
    p50_ms: float | None
    p99_ms: float | None


class ConsumeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Read all partitions from the start (or the end) until `until` records are read or `seconds` are over."""

    bootstrap: str
    topic: str
    partitions: int
    seconds: float
    until: int | None
    """None: the number comes on standard input as `until N`."""
    check: str = NOTHING
    from_end: bool = False
    again: bool = False
    """Begin at the start again after `until` records, until `seconds` are over."""
    promptly: bool = False
    """Take each record as it arrives, and measure the time since it was produced; else take many at once."""


class ConsumeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`numbers`: how many records of each partition were read."""

    records: int
    bytes: int
    seconds: float
    numbers: list[int]
    missing: int = 0
    duplicates: int = 0
    disordered: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None


class DriverInput:
    """Reads lines on a thread; `until` is set from outside while the driver works."""

    def __init__(self, until: int | None = None) -> None:
        self.until = until

    def ready(self) -> None:
        """Say so, and return when the bench says `go`."""
        print("ready", flush=True)
        if sys.stdin.readline().strip() != "go":
            raise SystemExit("the bench ended")
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self.until = int(line.removeprefix("until "))
        os._exit(1)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` % of `values` do not exceed; nan of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
