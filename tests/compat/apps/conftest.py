"""The clusters that the applications run on: Headrace with an eager cleaner, and Apache Kafka as reference.

Both clean as soon as anything can be cleaned, so that each application finds its state cleaned when it reads it again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.cli.bench.kafka_target import open_kafka
from headrace.cli.bench.target_spec import TargetSpec
from headrace.cli.main import main
from load.dev_server import DevServer
from load.tools import KAFKA_JARS, why_missing

EAGER = {"log.cleaner.min.cleanable.ratio": "0.01", "log.roll.ms": "500"}
"""Of topics that do not set it themselves."""
EAGER_HEADRACE: dict[str, object] = {
    "linger.ms": 25,
    "log.cleaner.backoff.ms": 200,
    "group.initial.rebalance.delay.ms": 0,
    "compaction.interval.ms": 300,
    "compaction.min.age.ms": 0,
    "compaction.max.age.ms": 300,
}
EAGER_KAFKA = EAGER | {"group.initial.rebalance.delay.ms": "0", "log.cleaner.backoff.ms": "200"}


@pytest.fixture(scope="session")
def headrace_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address."""
    with DevServer(tmp_path_factory.mktemp("dev"), settings=EAGER_HEADRACE) as running:
        defaults = [f"{name}={value}" for name, value in EAGER.items()]
        assert main(["configs", "set", *defaults, "--brokers", "--bootstrap-server", running.bootstrap]) == 0
        yield running.bootstrap


@pytest.fixture(scope="session")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address."""
    if reason := why_missing("kafka"):
        pytest.skip(reason)
    with _running_kafka(tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Of the cluster that the test names: parametrize it indirectly."""
    address: str = request.getfixturevalue(f"{request.param}_cluster")
    return address


@contextmanager
def _running_kafka(folder: Path) -> Iterator[str]:
    """One node, on an event loop in a thread."""
    started: list[str] = []
    ready, ended = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        try:
            async with open_kafka(TargetSpec("kafka", "kafka", settings=EAGER_KAFKA), folder, KAFKA_JARS) as target:
                started.append(target.bootstrap)
                ready.set()
                await ended.wait()
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait()
    assert started, "Apache Kafka did not start"
    yield started[0]
    loop.call_soon_threadsafe(ended.set)
    thread.join()
