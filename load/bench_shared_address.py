"""How long groups take to join behind one address, against agents that clients reach directly.

Place: `python -m load.bench_shared_address [--groups 20]`. Three agents of `headrace dev` each time, on fresh data; one
consumer per group, all started at once, half of them with the protocol of KIP-848. Printed: seconds from the first
subscription until half of the groups, and all, have partitions.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from load.balancer import Balancer
from load.dev_server import DevServer
from load.machine_state import machine_state

AGENTS = 3
PARTITIONS = 4
ROUNDS = 3
SECONDS_MAX = 300.0
POLL_SECONDS = 0.02


def join_seconds(bootstrap: str, groups: Sequence[str], topic: str) -> list[float]:
    """Of each group: until its consumer has partitions."""
    joined: dict[str, float] = {}
    ready = threading.Barrier(len(groups) + 1)
    began = [0.0]

    def member(number: int, group: str) -> None:
        protocol = "consumer" if number % 2 else "classic"
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol, "log_level": 0}
        )
        ready.wait()

        def assigned(_: object, partitions: object) -> None:
            joined.setdefault(group, time.monotonic())

        consumer.subscribe([topic], on_assign=assigned)
        until = time.monotonic() + SECONDS_MAX
        while len(joined) < len(groups) and time.monotonic() < until:
            consumer.poll(POLL_SECONDS)
        consumer.close()

    threads = [threading.Thread(target=member, args=each) for each in enumerate(groups)]
    for thread in threads:
        thread.start()
    began[0] = time.monotonic()
    ready.wait()
    for thread in threads:
        thread.join()
    return sorted(at - began[0] for at in joined.values())


def _measure(title: str, bootstrap: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("orders", PARTITIONS)])["orders"].result(SECONDS_MAX)
    for number in range(ROUNDS):
        found = join_seconds(bootstrap, [f"round-{number}-{group}" for group in range(count)], "orders")
        half, last = found[len(found) // 2], found[-1]
        print(f"  {title}: {len(found)} of {count} groups, half in {half:.2f} s, all in {last:.2f} s", flush=True)


def _free_ports(count: int) -> int:
    """The first of some consecutive ports that are free now."""
    for first in range(20_000, 30_000, count):
        probes = [socket.socket() for _ in range(count)]
        try:
            for number, probe in enumerate(probes):
                probe.bind(("127.0.0.1", first + number))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise RuntimeError("no free ports")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=20)
    args = parser.parse_args()
    print(f"{machine_state()}, {AGENTS} agents, group.initial.rebalance.delay.ms=0", flush=True)
    common = {"group.initial.rebalance.delay.ms": 0}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as place:
        Path(place).chmod(0o711)
        with DevServer(Path(place) / "direct", agents=AGENTS, settings=common) as dev:
            _measure("direct", ",".join(agent.kafka for agent in dev.agents), args.groups)
        first = _free_ports(AGENTS)
        with Balancer([f"127.0.0.1:{first + number}" for number in range(AGENTS)]) as balancer:
            shared = {**common, "listeners": f"PLAINTEXT://127.0.0.1:{first}", "behind.one.address": balancer.address}
            with DevServer(Path(place) / "shared", agents=AGENTS, settings=shared):
                _measure("behind one address", balancer.address, args.groups)


if __name__ == "__main__":
    main()
