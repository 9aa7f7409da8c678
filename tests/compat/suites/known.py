"""Failures of the suites that have a reason, by a pattern over the test's name.

Place: read by __main__.py.
Invariant: a pattern names what is not built or is another product's; never a fault of ours.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Known(NamedTuple):
    """Tests of `suite` (a pattern) with a name that matches `test` fail because of `reason`."""

    suite: str
    test: str
    reason: str


KNOWN: tuple[Known, ...] = (
    Known("kafka-python", r"test_alter_replica_log_dirs", "AlterReplicaLogDirs: there is one log dir, the bucket"),
    Known("aiokafka", r"test_exclude_internal_topics", "offsets are in Postgres: there is no topic __consumer_offsets"),
    Known(
        "aiokafka",
        r"test_consumer_fast_unsubscribe",
        "a race of the client's own, when its coordinator answers within 10 ms",
    ),
    Known("aiokafka", r"gssapi", "GSSAPI is not supported (docs/operate/SECURITY.md)"),
    Known(
        "confluent",
        r"test_basic_operations",
        "file.delete.delay.ms of a topic: files hold batches of many topics, so there is one value for the cluster",
    ),
    Known(
        "confluent",
        r"test_incremental_alter_configs",
        "it expects min.insync.replicas=1 among the set configs: Kafka sets it for a cluster when that is formatted",
    ),
    Known(
        "kafkajs",
        r"alter broker configs",
        "it sets cleanup.policy of a broker, which no broker has: Kafka stores such a config, here it is refused",
    ),
    Known("kafkajs", r"emits request timeout events", "it needs a broker that takes longer than 1 ms to answer"),
    Known(
        "kafkajs",
        r"if all broker errors are retriable|does not re-process successful partition twice"
        r"|if at least 1 broker error is non-retriable",
        "it counts requests by Kafka's placement of two partitions on two of three brokers; here they may share one",
    ),
)


def reason_for(suite: str, test: str) -> str | None:
    """Return why this test is expected to fail; None when it should pass."""
    for known in KNOWN:
        if re.search(known.suite, suite) and re.search(known.test, test):
            return known.reason
    return None
