"""Two agents on one Postgres and one S3 bucket, as they would run in production.

A traceback in what the agents of a test write fails the test: a fault that an agent knows is one line.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterator

import pytest

from tests.agent_process import AgentUnderTest, format_storage
from tests.fixtures_s3 import BUCKET, aws_credentials, moto_url, real_s3_url, s3_url
from tests.forked_cluster import FEED_POLL_MS
from tests.torture.tracebacks import tracebacks_of

_SPARKS_OWN = "pyspark."
"""A worker of Spark that an earlier test of this process started, and that Spark left."""
STDERR = "Captured stderr"
"""Opens the names of pytest's sections with what processes of a test wrote."""

__all__ = ["aws_credentials", "moto_url", "real_s3_url", "s3_url"]


EAGER_COMPACTION = {
    "process.roles": "broker,controller,compactor",
    "compaction.interval.ms": 500,
    "compaction.min.age.ms": 0,
    "compaction.max.age.ms": 300,
}
"""Files are merged about as fast as they come: every fault meets a compaction."""


@pytest.fixture
def agent_settings(metastore_url: str, s3_url: str) -> dict[str, object]:
    """Return what every agent of a test shares: its database, a separate prefix, short sessions."""
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
        "feed.poll.interval.ms": FEED_POLL_MS,
        "linger.ms": 25,
        "log.level": "warning",
    } | EAGER_COMPACTION
    format_storage(settings)
    return settings


@pytest.fixture
def two_agents(agent_settings: dict[str, object]) -> Iterator[tuple[AgentUnderTest, AgentUnderTest]]:
    with AgentUnderTest(agent_settings) as first, AgentUnderTest(agent_settings) as second:
        yield first, second


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a phase of a test in which a process wrote a traceback."""
    report = yield
    if report.passed:
        written = "".join(text for name, text in report.sections if name == f"{STDERR} {report.when}")
        found = tracebacks_of("a process of the test", written)
        if found := [each for each in found if _SPARKS_OWN not in each]:
            report.outcome = "failed"
            report.longrepr = "\n".join(found)
    return report
