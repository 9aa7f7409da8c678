"""The clusters that the applications run on: Headrace with an eager cleaner, and Apache Kafka as reference.

Both clean as soon as anything can be cleaned, so that each application finds its state cleaned when it reads it again.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.cli.main import main
from load.dev_server import DevServer
from tests.compat.kafka_server import kafka_server
from tests.house.needs import require

EAGER = {"log.cleaner.min.cleanable.ratio": "0.01", "log.roll.ms": "500"}
"""Configs of topics that do not set it themselves."""
EAGER_HEADRACE: dict[str, object] = {
    "linger.ms": 25,
    "log.cleaner.backoff.ms": 200,
    "group.initial.rebalance.delay.ms": 0,
    "compaction.interval.ms": 300,
    "compaction.min.age.ms": 0,
    "compaction.max.age.ms": 300,
}
EAGER_KAFKA = EAGER | {"group.initial.rebalance.delay.ms": "0", "log.cleaner.backoff.ms": "200"}


@pytest.fixture(scope="package")
def headrace_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address."""
    with DevServer(tmp_path_factory.mktemp("dev"), settings=EAGER_HEADRACE) as running:
        defaults = [f"{name}={value}" for name, value in EAGER.items()]
        assert main(["configs", "set", *defaults, "--brokers", "--bootstrap-server", running.bootstrap]) == 0
        yield running.bootstrap


@pytest.fixture(scope="package")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address."""
    require("kafka")
    with kafka_server(tmp_path_factory.mktemp("kafka"), EAGER_KAFKA) as bootstrap:
        yield bootstrap


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Return the bootstrap of the cluster that the test names: parametrize it indirectly."""
    address: str = request.getfixturevalue(f"{request.param}_cluster")
    return address
