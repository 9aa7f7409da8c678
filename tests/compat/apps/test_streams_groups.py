"""Kafka Streams with group.protocol=streams: twelve topologies, killed and restarted, here and on Apache Kafka.

What a topology writes is computed here from its input: both clusters must end with exactly that, with exactly-once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.main import main
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.client.transport import ClientConfig, parse_servers
from load.dev_server import DevServer
from tests.compat.apps.app import SECONDS_MAX, JavaApp
from tests.compat.kafka_server import kafka_server
from tests.house.needs import require
from tests.kafka_clients import KafkaClients
from tests.tools import KAFKA_APPS

pytestmark = [pytest.mark.requirement("X16"), pytest.mark.slow, pytest.mark.needs("kafka-apps")]
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


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the compiled program."""
    folder = tmp_path_factory.mktemp("program")
    subprocess.run(["javac", "-d", str(folder), "-cp", f"{KAFKA_APPS}/*", str(PROGRAM)], check=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def quick_headrace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of two agents."""
    with DevServer(tmp_path_factory.mktemp("dev"), agents=2, settings={**QUICK, "linger.ms": 25}) as running:
        yield running.bootstrap


@pytest.fixture(scope="module")
def quick_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address."""
    require("kafka")
    with kafka_server(tmp_path_factory.mktemp("kafka"), QUICK) as bootstrap:
        yield bootstrap


@cache
def _first_ms(bootstrap: str) -> int:
    return int(time.time() * 1000) // 10_000 * 10_000 - 3_600_000


class Run:
    """One topology on one cluster."""

    def __init__(self, bootstrap: str, name: str, program: Path, folder: Path) -> None:
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

    def app(self, number: int) -> JavaApp:
        """An instance with two threads and its own state."""
        words = [self.bootstrap, str(self._folder / f"state-{number}"), self._name, "exactly_once_v2", "2"]
        classes: list[Path | str] = [self._program, f"{KAFKA_APPS}/*"]
        return JavaApp(classes, ["StreamsTopologies", *words], self._folder / f"log-{number}", ["-Xmx256M"])

    def table(self) -> Table:
        """Return the last value of each key that a reader of committed records gets."""
        found = Table()
        for message in KafkaClients(self.bootstrap).read_to_end(f"{self._name}-out", OUT):
            key, value = message.key(), message.value()
            assert key is not None
            if value is None:
                found.pop(key.decode(), None)
            else:
                found[key.decode()] = value.decode()
        return found

    def is_done(self, records: int) -> bool:
        """Return whether the output is that of so many records of each side."""
        return self.table() == WRITTEN[self._name](self.left[:records], self.right[:records])


@pytest.mark.parametrize("cluster", ["headrace", "kafka"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_topology_ends_with_the_same_output_under_kills_and_restarts(
    cluster: str, name: str, program: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run = Run(request.getfixturevalue(f"quick_{cluster}"), name, program, tmp_path)
    third = RECORDS // 3
    with ExitStack() as apps:
        killed = apps.enter_context(run.app(1))
        run.produce(slice(0, third))
        killed.until(lambda: run.is_done(third), "the first third is done")
        with run.app(2) as second:
            run.produce(slice(third, 2 * third))
            killed.kill()
            second.until(lambda: run.is_done(2 * third), "another instance went on where one was killed")
            last = apps.enter_context(run.app(3))
            run.produce(slice(2 * third, RECORDS))
        last.until(lambda: run.is_done(RECORDS), "the last instance went on where another one was stopped")


def test_an_application_goes_on_when_the_coordinator_is_killed(program: Path, tmp_path: Path) -> None:
    """Its output goes on, too: exactly once, at the other agent."""
    half = RECORDS // 2
    with DevServer(tmp_path / "dev", agents=2, settings={**QUICK, "linger.ms": 25}) as server:
        run = Run(server.bootstrap, "words", program, tmp_path)
        with run.app(1) as app:
            run.produce(slice(0, half))
            app.until(lambda: run.is_done(half), "the first half is done")
            config = ClientConfig(parse_servers(server.bootstrap), "judge", 60_000)
            with KafkaCluster.of(config) as cluster:
                holder = cluster.coordinator("words")
            (pid,) = (agent.pid for agent in server.agents if agent.node_id == holder)
            os.kill(pid, signal.SIGKILL)
            run.produce(slice(half, RECORDS))
            app.until(lambda: run.is_done(RECORDS), "the application goes on")
