"""Agents behind one address are killed, restarted and switched to and from the mode, under load."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka
import pytest

from headrace.cli.main import main
from headrace.config.free_ports import free_ports
from tests.agent_process import SECONDS_MAX
from tests.balancer import Balancer
from tests.faults.shared_cluster import VIRTUAL, SharedCluster, member, shared_cluster, until_shown

GROUPS = 6
pytestmark = [pytest.mark.slow]


class Traffic:
    """An idempotent producer, and a consumer of each of some groups, of both protocols in turn."""

    def __init__(self, address: str, topic: str) -> None:
        self._address, self._topic = address, topic
        self._stopping = threading.Event()
        self.sent = 0
        self.failed: list[str] = []
        self.read: list[list[int]] = [[] for _ in range(GROUPS)]
        self._threads = [threading.Thread(target=self._produce)]
        self._threads += [threading.Thread(target=self._consume, args=(number,)) for number in range(GROUPS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def until(self, more: int) -> None:
        """Return when every group has read this many records more than now."""
        wanted = [len(values) + more for values in self.read]
        until = time.monotonic() + SECONDS_MAX
        while any(len(values) < count for values, count in zip(self.read, wanted, strict=True)):
            assert time.monotonic() < until, (self.sent, [len(values) for values in self.read], wanted)
            time.sleep(0.05)

    def stop(self) -> None:
        """Every group has read everything afterwards."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._address, "enable.idempotence": True, "linger.ms": 20, "log_level": 0}
        )

        def delivered(error: object, message: object) -> None:
            if error is not None:
                self.failed.append(str(error))

        while not self._stopping.is_set():
            producer.produce(self._topic, str(self.sent).encode(), on_delivery=delivered)
            self.sent += 1
            producer.poll(0.01)
        assert producer.flush(SECONDS_MAX) == 0

    def _consume(self, number: int) -> None:
        settings: dict[str, object] = {
            "bootstrap.servers": self._address,
            "group.id": f"traffic-{number}",
            "group.protocol": "consumer" if number % 2 else "classic",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            "reconnect.backoff.max.ms": 500,
            "socket.timeout.ms": 4_000,
            "log_level": 0,
        }
        if number % 2 == 0:
            settings |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 300}
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe([self._topic])
        until = float("inf")
        while time.monotonic() < until and not (self._stopping.is_set() and len(set(self.read[number])) >= self.sent):
            if self._stopping.is_set() and until == float("inf"):
                until = time.monotonic() + SECONDS_MAX
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.read[number].append(int(message.value()))
        consumer.close()

    def check(self) -> None:
        """Nothing failed, every group has read every record."""
        assert self.failed == []
        for values in self.read:
            assert set(values) == set(range(self.sent))


@contextmanager
def _traffic(address: str, topic: str) -> Iterator[Traffic]:
    traffic = Traffic(address, topic)
    traffic.start()
    try:
        yield traffic
    finally:
        traffic.stop()
    traffic.check()


def _set_shared(address: str, value: str) -> None:
    """Do the same as an operator does."""
    assert main(["configs", "set", f"advertised.shared={value}", "--brokers", "--bootstrap-server", address]) == 0


@pytest.fixture
def cluster(agent_settings: dict[str, object]) -> Iterator[SharedCluster]:
    with shared_cluster(agent_settings, 3) as running:
        yield running


def test_a_rolling_restart_behind_one_address_fails_nothing(cluster: SharedCluster) -> None:
    cluster.topic("orders", 6)
    with _traffic(cluster.address, "orders") as traffic:
        traffic.until(20)
        for number, port in enumerate(cluster.ports):
            assert cluster.agents[number].stop() == 0
            cluster.agents[number] = cluster.make(port)
            cluster.agents[number].__enter__()
            until_shown(f"127.0.0.1:{port}", {VIRTUAL})
            traffic.until(20)


def test_groups_of_a_killed_agent_go_on_at_others(cluster: SharedCluster) -> None:
    cluster.topic("orders", 6)
    with _traffic(cluster.address, "orders") as traffic:
        traffic.until(20)
        cluster.agents[0].kill()
        traffic.until(40)


def test_switching_the_mode_both_ways_under_load(agent_settings: dict[str, object]) -> None:
    """Each agent advertises its own address; clients start at a balancer in front of them."""
    ports = free_ports(2)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    with (
        Balancer(addresses) as balancer,
        member(agent_settings, ports[0], addresses[0]) as first,
        member(agent_settings, ports[1], addresses[1]) as second,
    ):
        nodes = {first.node_id, second.node_id}
        for address in addresses:
            until_shown(address, nodes)
        SharedCluster.create_topic(balancer.address, "orders", 6)
        with _traffic(balancer.address, "orders") as traffic:
            traffic.until(20)
            for value, shown in (("true", {VIRTUAL}), ("false", nodes), ("true", {VIRTUAL})):
                _set_shared(balancer.address, value)
                for address in addresses:
                    until_shown(address, shown)
                traffic.until(40)
