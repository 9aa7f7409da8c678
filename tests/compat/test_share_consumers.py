"""Share groups as Kafka's own Java client uses them, against agents that are killed (X12).

Fault model: SIGKILL of the agent that coordinates the group; a member that ends without a word.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from load.dev_server import DevServer
from tests.compat.conftest import SETTINGS
from tests.java_program import java_command
from tests.kafka_clients import KafkaClients
from tests.share_torture import MEMBER
from tests.tools import JAVA_LIBRARIES

pytestmark = [pytest.mark.needs("kafka-clients")]

PARTITIONS = 3
TIMEOUT_SECONDS = 300
MORTAL = SETTINGS | {
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 6_000,
    "group.share.record.lock.duration.ms": 5_000,
    "group.share.min.record.lock.duration.ms": 1_000,
}


class ShareMember:
    """One consumer process; what it said so far is in `lines`."""

    def __init__(self, bootstrap: str, group: str, topic: str, released: int) -> None:
        command = [*java_command(MEMBER, f"{JAVA_LIBRARIES}/*"), bootstrap, group, topic, str(released)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.put(line.rstrip("\n"))

    def close(self) -> None:
        """End it in good order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(TIMEOUT_SECONDS)

    def kill(self) -> None:
        """End it without a word."""
        self._process.kill()
        self._process.wait(TIMEOUT_SECONDS)


class Heard:
    """What all members of a group said, in the order in which this process read it."""

    def __init__(self) -> None:
        self.got: Counter[int] = Counter()
        self.accepted: Counter[int] = Counter()
        self.unsure: set[int] = set()
        """Values of which a member does not know whether their acceptance was stored."""

    def settle(self, members: Sequence[ShareMember]) -> None:
        """Take in what they said since."""
        for member in members:
            while not member.lines.empty():
                what, *rest = member.lines.get().split()
                if what == "got":
                    self.got[int(rest[0])] += 1
                elif what == "accepted":
                    self.accepted[int(rest[0])] += 1
                elif what == "unsure":
                    self.unsure.add(int(rest[0]))

    def until_accepted(self, members: Sequence[ShareMember], values: range) -> None:
        """Wait until a member accepted each value, and heard that this was stored or is not known."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while left := set(values) - self.accepted.keys() - self.unsure:
            self.settle(members)
            assert time.monotonic() < end, f"not accepted: {sorted(left)}"
            time.sleep(0.05)


Start = Callable[[str, str, int], ShareMember]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start members; they are killed afterwards."""
    started: list[ShareMember] = []

    def begin(bootstrap: str, topic: str, released: int) -> ShareMember:
        started.append(ShareMember(bootstrap, topic, topic, released))
        return started[-1]

    yield begin
    for member in started:
        member.kill()


def produce(bootstrap: str, topic: str, values: range) -> None:
    """Value n goes to partition n modulo their number."""
    KafkaClients(bootstrap, {"log_level": 0, "enable.idempotence": True}).produce(topic, values, PARTITIONS)


@pytest.mark.requirement("X12")
def test_two_members_accept_each_record_once_and_get_released_ones_again(server: DevServer, start: Start) -> None:
    topic = f"shared-{uuid.uuid4()}"
    asyncio.run(server.create_topic(topic, PARTITIONS))
    members = [start(server.bootstrap, topic, 10), start(server.bootstrap, topic, 10)]
    produce(server.bootstrap, topic, range(300))
    heard = Heard()
    heard.until_accepted(members, range(300))
    for member in members:
        member.close()
    heard.settle(members)
    sure = set(range(300)) - heard.unsure  # on a busy machine an acknowledgement may get no answer in time
    assert len(sure) > 100
    assert set(heard.accepted.values()) == {1}
    again = {value: count for value, count in heard.got.items() if count > 1 and value in sure}
    assert again == dict.fromkeys(sure & set(range(0, 300, 10)), 2)


@pytest.mark.slow
@pytest.mark.requirement("X12")
def test_the_owner_and_a_member_are_killed(tmp_path: Path, start: Start) -> None:
    topic = "killed"
    with DevServer(tmp_path, agents=3, settings=MORTAL) as server:
        asyncio.run(server.create_topic(topic, PARTITIONS))
        members = [start(server.bootstrap, topic, 0) for _ in range(3)]
        heard = Heard()
        produce(server.bootstrap, topic, range(600))
        heard.until_accepted(members, range(300))
        members[0].kill()
        for round_, agent in enumerate(server.agents[:2]):
            produce(server.bootstrap, topic, range(600 + 600 * round_, 1_200 + 600 * round_))
            os.kill(agent.pid, signal.SIGKILL)
            time.sleep(3)
        heard.until_accepted(members, range(1_800))
        print(f"unsure: {len(heard.unsure - heard.accepted.keys())}")
        assert max(heard.accepted.values()) == 1, "none was accepted by a second member"
