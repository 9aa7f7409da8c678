"""A topic doubles and halves again and again under real clients that know only the count, and a group of KIP-848.

Place: `python -m tests.growth.alternating_clients [--times 20] [--java]` starts `headrace dev` and changes the topic by
the operator's commands. Producers are librdkafka's (confluent-kafka), with --java also one of Kafka's Java client; one
more comes and goes with each change. Members come and go, too; with --java one of the Java client is killed at each
change. Judged is what the group got, in its order: per key and producer, the order of sending.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load.dev_server import DevServer
from tests.growth.doubling_producers import COUNT, REFRESH_MS, TOPIC, Producing, Sent, java_producing
from tests.growth.doubling_readers import JavaMember, Members, compile_java

SETTLE_MS = 10_000
GIVE_UP_MS = 8_000
"""Producers give a record up before the topic doubles again: halving.settle.ms says when that is. One that waits for
longer may send what it queued for a child behind newer records (docs/operate/PARTITIONS.md)."""
SETTINGS: dict[str, object] = {
    "group.consumer.min.heartbeat.interval.ms": 1_000,
    "group.consumer.heartbeat.interval.ms": 1_000,
    "group.consumer.min.session.timeout.ms": 6_000,
    "group.consumer.session.timeout.ms": 6_000,
    "halving.settle.ms": SETTLE_MS,
}
COMMAND_S, READ_S = 180.0, 60.0
VISIT_S = 6.0
JAVA_MEMBER_S, KILL_S = 60.0, 4.0
"""A member of the Java client ends after so many seconds at most, and is killed so long after its first record."""
FOR_EVER_S = 1e6
JAVA_STEP_S = 15.0
"""What a change takes, about: Kafka's Java client gets the whole time when it starts."""


@dataclass
class AlternatingOutcome:
    """`not_delivered`: acknowledged records that the group did not get. `seconds`: of each command, in turns."""

    acknowledged: int = 0
    not_delivered: int = 0
    late: Mapping[str, int] = field(default_factory=dict)
    """Records out of order, by producer."""
    again: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    by_killed: int = 0
    """Records that members got which were killed later."""

    @property
    def is_right(self) -> bool:
        """Whether the promise held. Records that failed were reported to their producers."""
        return not (self.not_delivered or self.late)

    def __str__(self) -> str:
        return (
            f"changes={len(self.seconds)} acknowledged={self.acknowledged} not_delivered={self.not_delivered}"
            f" out_of_order={dict(self.late)} again={self.again} by_killed={self.by_killed}"
            f" failed={dict(self.failed)}"
            f" double_s={_range(self.seconds[::2])} halve_s={_range(self.seconds[1::2])}"
        )


def run(server: DevServer, times: int, classes: Path | None = None) -> AlternatingOutcome:
    """`times` doublings, each with a halving after it. `classes`: of Java."""
    asyncio.run(server.create_topic(TOPIC, COUNT))
    outcome, sent, members = AlternatingOutcome(), Sent(), Members(server.bootstrap, TOPIC)
    members.start()
    shapes: list[Mapping[str, Any]] = [{}, {"linger.ms": 200}, {"batch.num.messages": 30}]
    staying = [_producer(server, f"whole-{number}", sent, FOR_EVER_S, shape) for number, shape in enumerate(shapes)]
    others: list[threading.Thread] = []
    if classes is not None:
        others.append(java_producing(server.bootstrap, "java", sent, 2 * times * JAVA_STEP_S, classes))
        others[0].start()
    for number in range(2 * times):
        with _killed_member(server, members, classes) as killed:
            time.sleep(VISIT_S / 2)
            others.append(_producer(server, f"visitor-{number}", sent, VISIT_S, {}))
            outcome.seconds.append(_change(server, "--double" if number % 2 == 0 else "--halve"))
        outcome.by_killed += 0 if killed is None else killed.records
    for producer in staying:
        producer.end()
    for thread in (*staying, *others):
        thread.join()
    outcome.not_delivered = members.wait_for(sent.acknowledged, READ_S)
    members.stop()
    outcome.acknowledged, outcome.failed = len(sent.acknowledged), sent.failed
    outcome.late, outcome.again = members.delivered.late, members.delivered.again
    return outcome


@contextlib.contextmanager
def _killed_member(server: DevServer, members: Members, classes: Path | None) -> Iterator[JavaMember | None]:
    """One of Kafka's Java client, if there is one, which is killed soon after its first record."""
    if classes is None:
        yield None
        return
    member = JavaMember(server.bootstrap, TOPIC, members.delivered, JAVA_MEMBER_S, classes, kill_s=KILL_S)
    member.start()
    yield member
    member.join()


def _producer(server: DevServer, name: str, sent: Sent, seconds: float, shape: Mapping[str, Any]) -> Producing:
    settings = {"message.timeout.ms": GIVE_UP_MS, **shape}
    producer = Producing(server.bootstrap, name, sent, time.monotonic() + seconds, settings)
    producer.start()
    return producer


def _change(server: DevServer, step: str) -> float:
    """The command's seconds, from when it was accepted: a topic that has just halved is not settled yet."""
    words = ["topics", "alter", TOPIC, step, "-b", server.bootstrap]
    words += ["--partitions", str(2 * COUNT if step == "--double" else COUNT)]
    words += ["--producers-max-age-ms", str(2 * REFRESH_MS)] if step == "--double" else []
    until = time.monotonic() + COMMAND_S
    while True:
        began = time.monotonic()
        command = [sys.executable, "-m", "headrace.cli.main", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S)
        if done.returncode == 0:
            return time.monotonic() - began
        if "the topic halves" not in done.stderr or time.monotonic() > until:
            raise AssertionError(done.stderr)
        time.sleep(1.0)


def _range(values: list[float]) -> str:
    return f"{min(values):.1f}..{max(values):.1f}" if values else "none"


def main() -> int:
    """0 if the order held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--agents", type=int, default=1)
    parser.add_argument("--java", action="store_true", help="also a producer of Kafka's Java client")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        classes = Path(directory) / "classes" if args.java else None
        if classes is not None:
            compile_java(classes)
        with DevServer(Path(directory) / "dev", agents=args.agents, settings=SETTINGS) as server:
            outcome = run(server, args.times, classes)
    print(outcome)
    return 0 if outcome.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
