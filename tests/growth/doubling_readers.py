"""A group of KIP-848 that reads a topic while it doubles: members of librdkafka and of Kafka's Java client come and go.

Place: under doubling_clients.py, which judges what they got. Members commit what they have noted, never more: so a gate
that opens by a commit opens after the records before it were noted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka

from tests.tools import JAVA_LIBRARIES

PROGRAM = Path(__file__).with_name("DoublingClients.java")
GROUP = "members"
STAY_S = 8.0
"""How long a member stays that comes and goes."""


@dataclass
class GroupDeliveries:
    """What the members got. `again`: records that came more than once."""

    again: int = 0
    seen: set[tuple[str, int]] = field(default_factory=set)
    newest: dict[tuple[bytes, str], int] = field(default_factory=dict)
    late: Counter[str] = field(default_factory=Counter)
    """Number of late records by producer: those that came for the first time, and after a newer one of their key
    and producer.
    """
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def inversions(self) -> int:
        """All that were late."""
        return self.late.total()

    def note(self, key: bytes, value: str) -> None:
        """One member got it."""
        name, _, digits = value.rpartition("/")
        number = int(digits)
        with self.lock:
            if (name, number) in self.seen:
                self.again += 1
                return
            self.seen.add((name, number))
            if number < self.newest.get((key, name), -1):
                self.late[name] += 1
            self.newest[key, name] = max(number, self.newest.get((key, name), -1))


class Member(threading.Thread):
    """One consumer of librdkafka, until `stop`."""

    def __init__(self, bootstrap: str, topic: str, delivered: GroupDeliveries) -> None:
        super().__init__()
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.offset.store": False,
            "auto.commit.interval.ms": 300,
        }
        self._consumer, self._delivered, self._topic = confluent_kafka.Consumer(settings), delivered, topic
        self._stopped = threading.Event()

    def stop(self) -> None:
        """It leaves the group."""
        self._stopped.set()

    def run(self) -> None:
        """Note records, then let their offsets be committed."""
        self._consumer.subscribe([self._topic])
        while not self._stopped.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                key, value = message.key(), message.value()
                assert key is not None
                assert value is not None
                self._delivered.note(key, value.decode())
                with contextlib.suppress(confluent_kafka.KafkaException):  # another member has the partition by now
                    self._consumer.store_offsets(message)
        self._consumer.close()


class Members:
    """Two that stay and one that comes and goes, from `start` to `stop`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.delivered = GroupDeliveries()
        self._bootstrap, self._topic = bootstrap, topic
        self._stopped = threading.Event()
        self._changing = threading.Thread(target=self._change)
        self._staying = [Member(bootstrap, topic, self.delivered) for _ in range(2)]

    def start(self) -> None:
        """Join the group."""
        for member in (*self._staying, self._changing):
            member.start()

    def stop(self) -> None:
        """All leave."""
        self._stopped.set()
        self._changing.join()
        for member in self._staying:
            member.stop()
        for member in self._staying:
            member.join()

    def wait_for(self, wanted: set[tuple[str, int]], seconds: float) -> int:
        """Wait until all of these were delivered, or the time is over; how many were not."""
        until = time.monotonic() + seconds
        while (left := len(wanted - self.delivered.seen)) and time.monotonic() < until:
            time.sleep(0.2)
        return left

    def _change(self) -> None:
        while not self._stopped.is_set():
            member = Member(self._bootstrap, self._topic, self.delivered)
            member.start()
            self._stopped.wait(STAY_S)
            member.stop()
            member.join()
            self._stopped.wait(1.0)


class ClientProcess:
    """A producer or a consumer in another language: a process, and the lines that it writes."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command, self._killed = command, False
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | dict(environment or {}),
        )

    def lines(self) -> Iterator[list[str]]:
        """The words of each, until the process has ended. RuntimeError if it ended with an error."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                yield line.split()
        if (status := self._process.wait()) != (-signal.SIGKILL if self._killed else 0):
            raise RuntimeError(f"a client failed: status={status} {self._command[0]}")

    def kill(self) -> None:
        """It ends without a word to the cluster."""
        self._killed = True
        self._process.kill()


class JavaMember(threading.Thread):
    """A consumer of Kafka's Java client, for so many seconds.

    With `kill_s` it is killed so many seconds after its first record: what it had not committed comes again.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        delivered: GroupDeliveries,
        seconds: float,
        classes: Path,
        kill_s: float | None = None,
    ) -> None:
        super().__init__()
        self._client = java_client(classes, "consume", bootstrap, topic, GROUP, str(seconds))
        self._delivered, self._kill_s = delivered, kill_s
        self.records = 0

    def run(self) -> None:
        """Run until it has ended."""
        for _, value, key, _ in self._client.lines():
            self._delivered.note(key.encode(), value)
            if not self.records and self._kill_s is not None:
                threading.Timer(self._kill_s, self._client.kill).start()
            self.records += 1


def java_client(classes: Path, *words: str) -> ClientProcess:
    """Kafka's own. `words`: mode, bootstrap, topic, name or group, seconds, and for a producer keys and
    metadata.max.age.ms."""
    return ClientProcess(["java", "-cp", f"{classes}:{JAVA_LIBRARIES}/*", "DoublingClients", *words])


def compile_java(classes: Path) -> None:
    """Needs the tool kafka-clients (`make tools`)."""
    classes.mkdir()
    subprocess.run(["javac", "-d", str(classes), "-cp", f"{JAVA_LIBRARIES}/*", str(PROGRAM)], check=True, timeout=300)
