"""Kafka Connect, distributed: a file goes through a topic into another file, over a restart of the worker.

Connect keeps configs, offsets and status in compacted topics, and reads each of them to its end when it starts.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.config.free_ports import free_ports
from tests.compat.apps.app import JavaApp, is_compacted, was_cleaned
from tests.examples import json_object, properties
from tests.tools import KAFKA_APPS

pytestmark = [
    pytest.mark.requirement("L1", "L2", "L3"),
    pytest.mark.slow,
    pytest.mark.needs("kafka-apps"),
]
LINES, ROUNDS = 20, 30
"""Lines of a round; Connect stores the source's offset several times a second, under one key."""


class Worker:
    """A Connect worker, and the files of its connectors."""

    def __init__(self, bootstrap: str, folder: Path, changes: Mapping[str, str]) -> None:
        """`changes`: other values of the example's lines."""
        self.bootstrap, self.folder = bootstrap, folder
        self.source, self.sink = folder / "source.txt", folder / "sink.txt"
        self.source.touch()
        self.written: list[str] = []
        self.rest = f"http://127.0.0.1:{free_ports(1)[0]}"
        self._config = properties(
            "connect/worker.properties",
            folder / "worker.properties",
            {"bootstrap.servers": bootstrap, "listeners": self.rest, **changes},
            {"offset.flush.interval.ms": "100", "task.shutdown.graceful.timeout.ms": "20000"},
        )

    def started(self) -> JavaApp:
        """A context: the worker runs."""
        command = ["org.apache.kafka.connect.cli.ConnectDistributed", str(self._config)]
        return JavaApp([f"{KAFKA_APPS}/*"], command, self.folder / "connect.log")

    def is_up(self) -> bool:
        """Return whether it answers, which it does once it has read its topics."""
        try:
            with urllib.request.urlopen(f"{self.rest}/connectors", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def connect(self, name: str, example: str, changes: Mapping[str, str]) -> None:
        """Create or change a connector."""
        body = json_object(f"connect/{example}.json", changes)
        request = urllib.request.Request(
            f"{self.rest}/connectors/{name}/config",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        urllib.request.urlopen(request, timeout=60).close()

    def write(self) -> None:
        """A round of lines."""
        lines = [f"line {len(self.written) + number}" for number in range(LINES)]
        with self.source.open("a") as source:
            source.write("".join(f"{line}\n" for line in lines))
        self.written += lines

    def has_all(self) -> bool:
        """Return whether the sink has every line."""
        return self.sink.exists() and len(self.sink.read_text().splitlines()) >= len(self.written)


@pytest.mark.parametrize("bootstrap", ["headrace", "kafka"], indirect=True)
def test_connect_continues_after_its_topics_were_cleaned(bootstrap: str, tmp_path: Path) -> None:
    # Transactions have markers in the topic of offsets, which the cleaner treats in another way.
    worker = Worker(bootstrap, tmp_path, {"exactly.once.source.support": "disabled"})
    with worker.started() as app:
        app.until(worker.is_up, "connect is up")
        worker.connect("reader", "source", {"file": str(worker.source), "exactly.once.support": "requested"})
        worker.connect("writer", "sink", {"file": str(worker.sink)})
        for _ in range(ROUNDS):
            worker.write()
            app.until(worker.has_all, "the sink has every line")
        app.until(lambda: was_cleaned(bootstrap, "connect-offset"), "stored offsets were cleaned")
    assert all(is_compacted(bootstrap, f"connect-{kind}") for kind in ("offset", "config", "status"))
    worker.write()
    with worker.started() as app:
        app.until(worker.has_all, "the sink has the lines that were written before the restart")
        worker.write()
        app.until(worker.has_all, "the sink has the lines that were written after the restart")
    assert worker.sink.read_text().splitlines() == worker.written
