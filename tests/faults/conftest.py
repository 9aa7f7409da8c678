"""Two agents on one Postgres and one S3 bucket, as they would run in production."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.agent_process import AgentUnderTest
from tests.fixtures_s3 import BUCKET, aws_credentials, moto_url

__all__ = ["aws_credentials", "moto_url"]


@pytest.fixture
def agent_settings(metastore_url: str, moto_url: str) -> dict[str, object]:
    """What every agent of a test shares: its database, a prefix of its own, short sessions."""
    return {
        "metastore.url": metastore_url,
        "bucket": f"s3://{BUCKET}/{uuid.uuid4()}",
        "s3.endpoint": moto_url,
        "s3.region": "us-east-1",
        "s3.path.style": True,
        "broker.session.timeout.ms": 3_000,
        "broker.heartbeat.interval.ms": 500,
        "group.initial.rebalance.delay.ms": 0,
        "linger.ms": 25,
        "log.level": "warning",
    }


@pytest.fixture
def two_agents(agent_settings: dict[str, object]) -> Iterator[tuple[AgentUnderTest, AgentUnderTest]]:
    with AgentUnderTest(agent_settings) as first, AgentUnderTest(agent_settings) as second:
        yield first, second
