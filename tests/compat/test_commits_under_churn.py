"""Members of a KIP-848 group come and go: no more of their commits are refused than on Apache Kafka (KIP-1251)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from load.dev_server import DevServer
from tests.compat.churn import churn
from tests.compat.conftest import SETTINGS
from tests.compat.kafka_server import kafka_server

pytestmark = [pytest.mark.needs("kafka"), pytest.mark.slow]
SECONDS = 45.0
SEED = 4


@pytest.fixture
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its bootstrap address."""
    settings = {name: str(value) for name, value in SETTINGS.items() if name.startswith("group.")}
    with kafka_server(tmp_path_factory.mktemp("kafka"), settings) as bootstrap:
        yield bootstrap


def test_no_more_commits_are_refused_than_on_kafka(server: DevServer, kafka: str) -> None:
    topic = f"churn-{uuid.uuid4()}"
    with ThreadPoolExecutor(2) as pool:
        on_kafka, here = pool.map(lambda bootstrap: churn(bootstrap, topic, SECONDS, SEED), (kafka, server.bootstrap))
    for name, outcome in (("kafka", on_kafka), ("headrace", here)):
        print(f"{name}: {outcome}")
    assert (on_kafka.missing, here.missing) == (0, 0)
    assert here.refused.total() <= on_kafka.refused.total()
    assert here.read_twice <= on_kafka.read_twice
