"""How long clients wait when an agent is lost: `python -m load gone_agent`.

Three agents with default settings. A librdkafka producer writes to every partition all the time, one reader has all
partitions assigned, and one member of a group reads and commits; the group's coordinator is the agent that is lost.
Printed for each way of losing it: the longest time without an acknowledgement, without a new record, and without a
commit, over all partitions. Each round is a new cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from load.dev_server import AgentAddress, DevServer
from load.harness import Benchmark, BenchmarkRun

TOPIC, PARTITIONS = "watched", 12
PERIOD_SECONDS = 0.05
BEFORE_SECONDS, AFTER_SECONDS = 5.0, 40.0
FROZEN_SECONDS = 100.0
"""Longer than librdkafka waits for an answer."""
ROUNDS = {
    "killed": ("SIGKILL", False),
    "killed, the active controller": ("SIGKILL", True),
    "drained": ("SIGTERM", False),
    "frozen": ("SIGSTOP", False),
}


class Pulse:
    """Times at which something last happened for each key, and the longest pause."""

    def __init__(self, keys: range) -> None:
        now = time.monotonic()
        self._last = dict.fromkeys(keys, now)
        self._longest = dict.fromkeys(keys, 0.0)
        self._lock = threading.Lock()

    def beat(self, key: int) -> None:
        """It happened now."""
        with self._lock:
            now = time.monotonic()
            self._longest[key] = max(self._longest[key], now - self._last[key])
            self._last[key] = now

    def restart(self) -> None:
        """Count from now on."""
        with self._lock:
            self._last = dict.fromkeys(self._last, time.monotonic())
            self._longest = dict.fromkeys(self._longest, 0.0)

    def longest(self) -> float:
        """Seconds, also if the pause has not ended."""
        with self._lock:
            now = time.monotonic()
            return max(max(self._longest[key], now - self._last[key]) for key in self._last)


class Silences(NamedTuple):
    """Seconds: the longest pause of any partition."""

    produce: float
    fetch: float
    commit: float


class Clients:
    """The three clients, each in a thread, while the context lasts."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._bootstrap, self._group = bootstrap, group
        self._ended = threading.Event()
        self.produced, self.fetched, self.committed = (
            Pulse(range(PARTITIONS)),
            Pulse(range(PARTITIONS)),
            Pulse(range(1)),
        )
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._read, self._commit)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 5})
        while not self._ended.is_set():
            for partition in range(PARTITIONS):
                with contextlib.suppress(BufferError):
                    producer.produce(TOPIC, b"x", partition=partition, on_delivery=self._delivered)
            producer.poll(PERIOD_SECONDS)
            time.sleep(PERIOD_SECONDS)
        producer.flush(60)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            raise KafkaException(error)
        self.produced.beat(message.partition())

    def _read(self) -> None:
        reader = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "assigned", "enable.auto.commit": False})
        reader.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        while not self._ended.is_set():
            for message in reader.consume(1000, 0.1):
                if message.error() is None and (partition := message.partition()) is not None:
                    self.fetched.beat(partition)
        reader.close()

    def _commit(self) -> None:
        member = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self._group, "enable.auto.commit": False})
        member.subscribe([TOPIC])
        while not self._ended.is_set():
            if any(message.error() is None for message in member.consume(100, 0.2)):
                with contextlib.suppress(KafkaException):
                    member.commit(asynchronous=False)
                    self.committed.beat(0)
        member.close()


def lose(kind: str, controller: bool) -> Silences:
    """One round in a new cluster."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        errors = Path(folder) / "log"
        with DevServer(Path(folder) / "dev", agents=3, errors=errors) as server:
            bootstrap = ",".join(agent.kafka for agent in server.agents)
            admin = AdminClient({"bootstrap.servers": bootstrap})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(60)
            victim = next(agent for agent in server.agents if _is_controller(agent) is controller)
            with Clients(bootstrap, _group_at(admin, victim)) as clients:
                time.sleep(BEFORE_SECONDS)
                for pulse in (clients.produced, clients.fetched, clients.committed):
                    pulse.restart()
                with _lost(victim, kind):
                    time.sleep(FROZEN_SECONDS if kind == "SIGSTOP" else AFTER_SECONDS)
                return Silences(clients.produced.longest(), clients.fetched.longest(), clients.committed.longest())


def _is_controller(agent: AgentAddress) -> bool:
    with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=30) as response:
        return b"\nheadrace_controller_active 1.0" in response.read()


def _group_at(admin: AdminClient, agent: AgentAddress) -> str:
    """The name of a group that has this agent as its coordinator."""
    for number in range(200):
        found = admin.describe_consumer_groups([f"g{number}"])[f"g{number}"].result(60)
        if found.coordinator.id == agent.node_id:
            return f"g{number}"
    raise RuntimeError(f"no group has its coordinator at agent {agent.node_id}")


@contextlib.contextmanager
def _lost(victim: AgentAddress, kind: str) -> Iterator[None]:
    os.kill(victim.pid, getattr(signal, kind))
    try:
        yield
    finally:
        if kind == "SIGSTOP":
            os.kill(victim.pid, signal.SIGCONT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--round", action="append", choices=[*ROUNDS], help="only this one; may be repeated")


def benchmark(run: BenchmarkRun) -> None:
    logging.basicConfig(level=logging.WARNING)
    for name in run.args.round or ROUNDS:
        silences = lose(*ROUNDS[name])
        figures = {"s of produce": silences.produce, "s of fetch": silences.fetch}
        run.row(name, figures | {"s of commits of its group": silences.commit})


BENCHMARK = Benchmark("how long clients wait when an agent is killed, drained or frozen", benchmark, add_arguments)
