"""Replaces the Kafka that kafka-python's own tests start: their fixtures return running agents of Headrace.

Place: loaded with `-p` into kafka-python's pytest; its code is not changed.
Invariant: a fixture for a protocol returns the agents' listener with this protocol.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

BROKER_CONFIGS = {"replicas": 1, "partitions": 4}


def _broker(transport: str = "PLAINTEXT", sasl_mechanism: str | None = None, **_: object) -> Any:
    from test.integration.fixtures import KafkaFixture

    host, _, port = os.environ[f"HEADRACE_{transport}"].rpartition(":")
    broker = KafkaFixture(
        host, int(port), 0, transport=transport, sasl_mechanism=sasl_mechanism, external=True, **BROKER_CONFIGS
    )
    broker.ssl_dir = os.environ["HEADRACE_CERTIFICATES"]
    broker.get_topic_names = lambda: _topics(broker)
    return broker


def _topics(broker: Any) -> list[str]:
    """Instead of kafka-topics.sh, which needs Kafka."""
    from kafka import KafkaAdminClient
    from test.integration.fixtures import client_params

    admin = KafkaAdminClient(**client_params(broker, "topics"))
    try:
        return list(admin.list_topics())
    finally:
        admin.close()


def _factory() -> Callable[..., Any]:
    return _broker


_VALUES: dict[str, Callable[[], Any]] = {
    "kafka_broker_factory": _factory,
    "ssl_kafka": lambda: _broker("SSL"),
}


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: Any) -> Any:
    """The value instead of the fixture's own, for those that would start Kafka."""
    make = _VALUES.get(fixturedef.argname)
    if make is None:
        return None
    value = make()
    fixturedef.cached_result = (value, fixturedef.cache_key(request), None)
    return value
