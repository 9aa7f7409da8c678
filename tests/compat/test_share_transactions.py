"""Records of transactions in share groups, written by a transactional producer (X12): what share.isolation.level lets a
group get, that an open transaction holds up what follows it, and that nothing stays in flight.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

import confluent_kafka
import pytest

from headrace.cli.client.groups import share_progress
from headrace.cli.main import main
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.client.transport import client_config
from load.dev_server import DevServer
from tests.compat.test_transactions import a_producer
from tests.share_member import ShareMember

TIMEOUT_SECONDS = 240


def _send(producer: confluent_kafka.Producer, topic: str, values: Iterable[str]) -> None:
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def _taken(member: ShareMember, count: int) -> list[str]:
    """Accept so many records, and return them in order."""
    found: list[str] = []
    until = time.monotonic() + TIMEOUT_SECONDS
    while len(found) < count:
        records = member.poll(50)
        if records:
            assert member.acknowledge(records)
            found += [str(record.value) for record in records]
        assert time.monotonic() < until, found
    return found


def _lag(bootstrap: str, group: str) -> int | None:
    with KafkaCluster.of(client_config(bootstrap, None)) as cluster:
        ((_, lag),) = share_progress(cluster, group).values()
        return lag


def _until_lag(bootstrap: str, group: str, lag: int) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    while (found := _lag(bootstrap, group)) != lag:
        assert time.monotonic() < until, found


@pytest.mark.requirement("X12")
def test_a_group_gets_what_its_isolation_level_lets_it(server: DevServer) -> None:
    topic = f"isolated-{uuid.uuid4()}"
    committed, uncommitted = f"committed-{topic}", f"uncommitted-{topic}"
    assert main(["topics", "create", topic, "--partitions", "1", "-b", server.bootstrap]) == 0
    for group, level in ((committed, "read_committed"), (uncommitted, "read_uncommitted")):
        for config in ("share.auto.offset.reset=earliest", f"share.isolation.level={level}"):
            assert main(["configs", "set", config, "--group", group, "-b", server.bootstrap]) == 0
    plain = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap})
    first, second = (a_producer(server, f"{name}-{topic}") for name in ("first", "second"))
    _send(plain, topic, "a")
    first.begin_transaction()
    _send(first, topic, "bc")
    first.commit_transaction(TIMEOUT_SECONDS)
    first.begin_transaction()
    _send(first, topic, "de")
    second.begin_transaction()
    _send(second, topic, "f")
    _send(plain, topic, "g")
    first.abort_transaction(TIMEOUT_SECONDS)

    with (
        ShareMember(server.bootstrap, committed, topic) as stable,
        ShareMember(server.bootstrap, uncommitted, topic) as every,
    ):
        assert _taken(stable, 3) == [*"abc"]
        assert _taken(every, 7) == [*"abcdefg"]
        assert stable.poll(50) == [], "a transaction is open"
        second.commit_transaction(TIMEOUT_SECONDS)
        assert _taken(stable, 2) == [*"fg"]
        for member, group in ((stable, committed), (every, uncommitted)):
            assert member.poll(50) == []
            _until_lag(server.bootstrap, group, 0)
