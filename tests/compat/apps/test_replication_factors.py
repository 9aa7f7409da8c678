"""Connect, MirrorMaker 2 and Streams with the replication factors that they ask for by default: 3, 2 and the cluster's.

On one agent, on three, and on three behind one address. The table of docs/INTEGRATIONS.md says what each needs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from load.dev_server import DevServer
from tests.balancer import Balancer
from tests.compat.apps.app import SECONDS_MAX, JavaApp
from tests.compat.apps.counting import Words, all_records
from tests.compat.apps.test_connect import Worker
from tests.compat.apps.test_streams import PROGRAM
from tests.examples import settings
from tests.kafka_clients import KafkaClients
from tests.tools import KAFKA_APPS

pytestmark = [
    pytest.mark.requirement("L1", "X3"),
    pytest.mark.slow,
    pytest.mark.needs("kafka-apps"),
]
PORT = 24_300
"""The first agent's behind one address; below the ports that systems give out."""
SHAPES = ("one agent", "three agents", "one address")
RECORDS = 20
EXPECTED = {
    "connect-config": 3,
    "connect-offset": 3,
    "connect-status": 3,
    "streams-counted": 1,
    "counting-streams-counts-changelog": 1,
    "heartbeats": 3,
    "a.mirrored": 2,
    "a.checkpoints.internal": 3,
    "mm2-offset-syncs.b.internal": 3,
    "mm2-configs.a.internal": 3,
    "mm2-offsets.a.internal": 3,
    "mm2-status.a.internal": 3,
}
"""The factor of each topic that clients see, with any number of agents."""


@pytest.fixture(params=SHAPES)
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Address of a cluster of this shape."""
    own: dict[str, object] = {"linger.ms": 25, "group.initial.rebalance.delay.ms": 0}
    count = 1 if request.param == "one agent" else 3
    with ExitStack() as stack:
        if request.param != "one address":
            yield stack.enter_context(DevServer(tmp_path / "dev", agents=count, settings=own)).bootstrap
            return
        ports = range(PORT, PORT + count)
        balancer = stack.enter_context(Balancer([f"127.0.0.1:{port}" for port in ports]))
        own |= {"behind.one.address": balancer.address, "listeners": f"PLAINTEXT://127.0.0.1:{PORT}"}
        stack.enter_context(DevServer(tmp_path / "dev", agents=count, settings=own))
        yield balancer.address


def _without_factors(lines: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of an example without its replication factors, so that the application's own are used."""
    return {name: value for name, value in lines.items() if not name.endswith("replication.factor")}


def _write(path: Path, lines: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


def _connect(bootstrap: str, folder: Path) -> None:
    worker = Worker(bootstrap, folder, {"exactly.once.source.support": "disabled"})
    config = folder / "worker.properties"
    _write(config, _without_factors(dict(line.split("=", 1) for line in config.read_text().splitlines())))
    with worker.started() as app:
        app.until(worker.is_up, "connect is up")
        worker.connect("reader", "source", {"file": str(worker.source), "exactly.once.support": "requested"})
        worker.connect("writer", "sink", {"file": str(worker.sink)})
        worker.write()
        app.until(worker.has_all, "the sink has every line")


def _streams(bootstrap: str, folder: Path) -> None:
    subprocess.run(["javac", "-d", str(folder), "-cp", f"{KAFKA_APPS}/*", str(PROGRAM)], check=True, timeout=300)
    words = Words(bootstrap, "streams")
    command = ["StatefulCount", bootstrap, str(folder / "state"), "at_least_once", "streams"]
    with JavaApp([folder, f"{KAFKA_APPS}/*"], command, folder / "streams.log") as app:
        words.produce()
        app.until(lambda: words.are_counted(lambda value: (None, int(value))), "every record is counted")


def _mirror_maker(bootstrap: str, folder: Path) -> None:
    """Mirror from the cluster to itself, as `a` and `b`."""
    clients = KafkaClients(bootstrap)
    clients.create("mirrored")
    clients.produce("mirrored", range(RECORDS))
    example = settings("mirror-maker/mm2.properties")
    lines = {
        "clusters": "a, b",
        "a.bootstrap.servers": bootstrap,
        "b.bootstrap.servers": bootstrap,
        "a->b.enabled": "true",
        "topics": "mirrored",
        "groups": example["groups"],
        "emit.heartbeats.interval.seconds": "1",
        "refresh.topics.interval.seconds": "2",
    }
    config = _write(folder / "mm2.properties", lines)
    command = ["org.apache.kafka.connect.mirror.MirrorMaker", str(config)]

    def has_all() -> bool:
        names = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics
        return "a.mirrored" in names and len(all_records(bootstrap, "a.mirrored", 1)) >= RECORDS

    with JavaApp([f"{KAFKA_APPS}/*"], command, folder / "mm2.log") as app:
        app.until(has_all, "every record is mirrored")
        app.until(lambda: EXPECTED.keys() <= _factors(bootstrap).keys(), "MirrorMaker has its topics")


def _factors(bootstrap: str) -> dict[str, int]:
    """Return how many replicas the first partition of each topic shows."""
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=SECONDS_MAX).topics
    return {name: len(topic.partitions[0].replicas) for name, topic in topics.items() if 0 in topic.partitions}


def test_default_replication_factors(bootstrap: str, tmp_path: Path) -> None:
    runs: tuple[Callable[[str, Path], None], ...] = (_connect, _streams, _mirror_maker)
    for run in runs:
        folder = tmp_path / run.__name__
        folder.mkdir()
        run(bootstrap, folder)
    found = _factors(bootstrap)
    assert {name: factor for name, factor in found.items() if name in EXPECTED} == EXPECTED
