"""Two agents on one Postgres and one S3 bucket, as they would run in production."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.agent_process import AgentUnderTest, format_storage
from tests.fixtures_s3 import BUCKET, aws_credentials, moto_url, real_s3_url, s3_url

__all__ = ["aws_credentials", "moto_url", "real_s3_url", "s3_url"]


EAGER_COMPACTION = {
    "process.roles": "broker,controller,compactor",
    "compaction.interval.ms": 300,
    "compaction.min.age.ms": 0,
    "compaction.max.age.ms": 300,
}
"""Files are merged about as fast as they come: every fault meets a compaction."""


@pytest.fixture
def agent_settings(metastore_url: str, s3_url: str) -> dict[str, object]:
    """What every agent of a test shares: its database, a separate prefix, short sessions."""
    return _formatted(metastore_url, s3_url)


@pytest.fixture(scope="module")
def module_agent_settings(module_metastore_url: str, s3_url: str) -> dict[str, object]:
    """The same for a cluster that the tests of a module share."""
    return _formatted(module_metastore_url, s3_url)


def _formatted(metastore_url: str, s3_url: str) -> dict[str, object]:
    settings = {
        "metastore.url": metastore_url,
        "bucket": f"s3://{BUCKET}/{uuid.uuid4()}",
        "s3.endpoint": s3_url,
        "s3.region": "us-east-1",
        "s3.path.style": True,
        "broker.session.timeout.ms": 3_000,
        "broker.heartbeat.interval.ms": 500,
        "group.initial.rebalance.delay.ms": 0,
        "linger.ms": 25,
        "log.level": "warning",
    } | EAGER_COMPACTION
    format_storage(settings)
    return settings


@pytest.fixture
def two_agents(agent_settings: dict[str, object]) -> Iterator[tuple[AgentUnderTest, AgentUnderTest]]:
    with AgentUnderTest(agent_settings) as first, AgentUnderTest(agent_settings) as second:
        yield first, second
