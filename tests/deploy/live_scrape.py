"""A page of /metrics from a real process with all roles, after clients produced, consumed and committed.

Place: what the page of metrics, the dashboards and the alert rules are compared with; made once per test file.
"""

from __future__ import annotations

import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from tests.agent_process import SECONDS_MAX, AgentUnderTest, format_storage
from tests.confluent_records import read
from tests.kafka_clients import KafkaClients

TOPIC, GROUP = "orders", "billing"
RECORDS, COMMITTED = 200, 150


class Scrape:
    """The families by the name that queries use, without a histogram's endings."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families: dict[str, Metric] = {}
        for family in text_string_to_metric_families(text):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            self.families[name] = family

    def value(self, sample: str, **labels: str) -> float | None:
        """Return the value of the one sample with this name and at least these labels."""
        found = [
            each.value
            for family in self.families.values()
            for each in family.samples
            if each.name == sample and labels.items() <= each.labels.items()
        ]
        return found[0] if found else None


@pytest.fixture(scope="session")
def scrape(
    postgres_server: EmbeddedPostgres, metastore_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scrape]:
    """Taken when the consumer's lag is on the page: the active controller asks for it twice a minute."""
    name = "scraped"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {metastore_template}")
        with AgentUnderTest(_settings(postgres_server.url(name), tmp_path_factory.mktemp("bucket"))) as agent:
            _load(agent)
            scraped = _scrape_with_lag(agent)
        yield scraped
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _settings(metastore_url: str, bucket: Path) -> dict[str, object]:
    settings: dict[str, object] = {
        "metastore.url": metastore_url,
        "bucket": f"file://{bucket}",
        "process.roles": "broker,controller,compactor",
        "group.initial.rebalance.delay.ms": 0,
        "log.level": "warning",
    }
    format_storage(settings)
    return settings


def _load(agent: AgentUnderTest) -> None:
    clients = KafkaClients(agent.kafka, {"enable.idempotence": True})
    clients.create(TOPIC)
    clients.produce(TOPIC, [b"record %d" % number for number in range(RECORDS)])
    with clients.consumer({"group.id": GROUP, "enable.auto.commit": False, "client.id": str(uuid.uuid4())}) as consumer:
        consumer.subscribe([TOPIC])
        read(consumer, COMMITTED, SECONDS_MAX)
        consumer.commit(asynchronous=False)


def _scrape_with_lag(agent: AgentUnderTest) -> Scrape:
    until = time.monotonic() + SECONDS_MAX
    while True:
        with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=SECONDS_MAX) as response:
            scrape = Scrape(response.read().decode())
        if scrape.value("headrace_consumer_lag_records", group=GROUP) is not None:
            return scrape
        assert time.monotonic() < until
        time.sleep(0.2)
