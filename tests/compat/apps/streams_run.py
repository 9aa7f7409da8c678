"""Twelve topologies of Kafka Streams, their input, what they have written in the end, and the processes that run them.

A topology has the name of its application and of its topics; `NAME-more` is another application of the same topology.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.main import main
from tests.compat.apps.app import SECONDS_MAX, App
from tests.kafka_clients import KafkaClients

PROGRAM = Path(__file__).with_name("StreamsTopologies.java")
QUICK = {
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.min.heartbeat.interval.ms": "300",
    "group.streams.heartbeat.interval.ms": "300",
    "group.streams.initial.rebalance.delay.ms": "300",
}
"""A killed member is given up soon."""
PARTITIONS, OUT, RECORDS = 3, 2, 400
NAMES = ("ant", "bee", "cat", "dog", "eel", "fox")


class Record(NamedTuple):
    key: str
    value: str
    timestamp: int


Input = Sequence[Record]
Table = dict[str, str]


def _made(seed: int, first_ms: int) -> list[Record]:
    rng = random.Random(seed)
    places = range(first_ms, first_ms + RECORDS * 700, 700)
    return [Record(rng.choice(NAMES), " ".join(rng.choices(NAMES, k=2)), at) for at in places]


def _counted(keys: Iterator[str]) -> Table:
    return {key: str(count) for key, count in Counter(keys).items()}


def _largest(records: Input, key: Callable[[Record], str] = lambda record: record.key) -> Table:
    found = Table()
    for record in records:
        found[key(record)] = max(found.get(key(record), ""), record.value)
    return found


def _tables(left: Input, right: Input) -> Table:
    others = _largest(right)
    return {key: f"{value}|{others[key]}" for key, value in _largest(left).items() if key in others}


def _foreign(left: Input, right: Input) -> Table:
    others = {record.key: record.value for record in right}
    pairs = ((record.key, record.value, record.value.split()[0]) for record in left)
    return {key: f"{value}|{others[other]}" for key, value, other in pairs if other in others}


def _pairs(left: Iterator[str], right: Iterator[str]) -> Table:
    ours, others = Counter(left), Counter(right)
    return {key: str(count * others[key]) for key, count in ours.items() if key in others}


def _sessions(left: Input, right: Input) -> Table:
    found: dict[str, list[list[int]]] = {}
    for record in sorted(left, key=lambda record: record.timestamp):
        sessions = found.setdefault(record.key, [])
        if sessions and record.timestamp - sessions[-1][-1] <= 5_000:
            sessions[-1].append(record.timestamp)
        else:
            sessions.append([record.timestamp])
    return {f"{key}@{session[0]}": str(len(session)) for key, each in found.items() for session in each}


def _words(records: Input) -> Iterator[str]:
    return (word for record in records for word in record.value.split())


def _first_words(records: Input) -> Iterator[str]:
    return (record.value.split()[0] for record in records)


def _branch(record: Record) -> str:
    return f"{record.key}-{'ants' if record.value.startswith('ant') else 'others'}"


WRITTEN: Mapping[str, Callable[[Input, Input], Table]] = {
    "stateless": lambda left, right: {record.key: str(len(record.value)) for record in left},
    "count": lambda left, right: _counted(record.key for record in left),
    "words": lambda left, right: _counted(_words(left)),
    "reduced": lambda left, right: _largest(left, lambda record: record.value.split()[0]),
    "merged": lambda left, right: _counted(record.key for record in (*left, *right)),
    "tables": _tables,
    "foreign": _foreign,
    "streams": lambda left, right: _pairs((one.key for one in left), (one.key for one in right)),
    "rekeyed": lambda left, right: _pairs(_words(left), _first_words(right)),
    "tumbling": lambda left, right: _counted(f"{one.key}@{one.timestamp // 10_000 * 10_000}" for one in left),
    "sessions": _sessions,
    "branches": lambda left, right: _counted(map(_branch, left)),
}
"""Topology -> what it has written in the end, by key."""


class Program(NamedTuple):
    """The compiled program. `jars`: the folder of the Kafka Streams that it runs with."""

    classes: Path
    jars: Path

    @classmethod
    def compiled(cls, folder: Path, jars: Path) -> Program:
        """Compile it into the folder."""
        subprocess.run(["javac", "-d", str(folder), "-cp", f"{jars}/*", str(PROGRAM)], check=True, timeout=300)
        return cls(folder, jars)

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command of an instance: bootstrap, folder of its state, application, guarantee, threads."""
        return ["java", "-Xmx256M", "-cp", f"{self.classes}:{self.jars}/*", PROGRAM.stem, *words]


@cache
def _first_ms(bootstrap: str) -> int:
    return int(time.time() * 1000) // 10_000 * 10_000 - 3_600_000


class Run:
    """One topology on one cluster."""

    def __init__(self, bootstrap: str, name: str, program: Program, folder: Path) -> None:
        """`name`: of the application."""
        self.bootstrap, self._name, self._program, self._folder = bootstrap, name, program, folder
        self.left, self.right = (_made(seed, _first_ms(bootstrap)) for seed in (1, 2))
        topics = [NewTopic(f"{name}-{side}", PARTITIONS, 1) for side in ("left", "right")]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for created in admin.create_topics([*topics, NewTopic(f"{name}-out", OUT, 1)]).values():
            created.result(60)
        assert main(["configs", "set", "streams.num.standby.replicas=1", "--group", name, "-b", bootstrap]) == 0

    def produce(self, part: slice) -> None:
        """Produce a part of the records, both sides in turn."""
        as_java = {"partitioner": "murmur2_random"}  # a join by a foreign key asks the partition that Java chooses
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 1, **as_java})
        for records in zip(self.left[part], self.right[part], strict=True):
            for side, record in zip(("left", "right"), records, strict=True):
                producer.produce(f"{self._name}-{side}", record.value, record.key, timestamp=record.timestamp)
        assert producer.flush(SECONDS_MAX) == 0

    def app(self, number: int) -> App:
        """An instance with two threads and its own state."""
        words = [self.bootstrap, str(self._folder / f"state-{number}"), self._name, "exactly_once_v2", "2"]
        return App(self._program.command(words), self._folder / f"log-{number}")

    def table(self) -> Table:
        """Return what it has written so far."""
        return written_table(self.bootstrap, self._name)

    def is_done(self, records: int) -> bool:
        """Return whether the output is that of so many records of each side."""
        return self.table() == WRITTEN[self._name.partition("-")[0]](self.left[:records], self.right[:records])


def written_table(bootstrap: str, application: str) -> Table:
    """Return the last value of each key that a reader of committed records gets."""
    found = Table()
    for message in KafkaClients(bootstrap).read_to_end(f"{application}-out", OUT):
        key, value = message.key(), message.value()
        assert key is not None
        if value is None:
            found.pop(key.decode(), None)
        else:
            found[key.decode()] = value.decode()
    return found
