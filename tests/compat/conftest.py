"""What tests with real clients share: a cluster of one agent and one of two, without faults."""

from __future__ import annotations

from tests.forked_cluster import shared_cluster

SETTINGS: dict[str, object] = {
    "linger.ms": 5,
    "group.initial.rebalance.delay.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.session.timeout.ms": 10_000,  # a JVM starts within it on a busy machine
    "group.consumer.min.session.timeout.ms": 1_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}
"""What the tests of `server` wait for happens soon."""
one_agent = shared_cluster(scope="package", settings={"linger.ms": 25})
"""A single agent, so that what it answered it also shows; one for all that take it."""
server = shared_cluster(scope="package", agents=2, settings=SETTINGS)
"""Two agents; one cluster for all that take it. A test names its topics and groups by what it tests."""
