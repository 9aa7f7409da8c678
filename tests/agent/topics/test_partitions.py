"""CreatePartitions, DescribeTopicPartitions and ElectLeaders: partitions added, shown page by page, and led."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from kafka.protocol.admin import CreatePartitionsRequest, DescribeTopicPartitionsRequest, ElectLeadersRequest
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.cluster import Cluster
from headrace.agent.topics.counts.count_changes import CreatePartitions, PartitionCounts
from headrace.agent.topics.metadata.described_topics import DescribeTopicPartitions
from headrace.agent.topics.partition_requests import ElectLeaders
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.client_calls import call, captured_requests, read_reply, versions_of
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.manual_clock import ManualClock

Growing = CreatePartitionsRequest.CreatePartitionsTopic
Assigned = Growing.CreatePartitionsAssignment
Cursor = DescribeTopicPartitionsRequest.Cursor


class Admin:
    """One agent's handlers about partitions on a fake metastore."""

    def __init__(self, clock: ManualClock) -> None:
        self.api = FakeClusterApi(clock)
        self.cluster: Cluster = an_agent(self.api)
        self.limits_reached: list[str] = []
        self.counts = PartitionCounts(
            self.cluster,
            self.api,
            clock,
            lambda: TopicDefaults(1, 1, partitions_max=20_000),
            self.limits_reached.append,
        )
        self.create_partitions = CreatePartitions(self.counts)
        self.describe = DescribeTopicPartitions(self.cluster, shared=None, authorizer=None)
        self.elect_leaders = ElectLeaders(self.cluster)

    async def grow(self, *topics: Any, version: int = 3, validate_only: bool = False) -> Any:
        message = CreatePartitionsRequest(topics=list(topics), timeout_ms=1_000, validate_only=validate_only)
        return (await call(self.create_partitions, message, version)).results

    async def page(self, *topics: str, limit: int = 2_000, cursor: tuple[str, int] | None = None) -> Any:
        asked = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in topics]
        place = None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1])
        message = DescribeTopicPartitionsRequest(topics=asked, response_partition_limit=limit, cursor=place)
        return await call(self.describe, message, 0)

    async def elect(self, partitions: dict[str, list[int]] | None, version: int = 2, kind: int = 0) -> Any:
        wanted = ElectLeadersRequest.TopicPartitions
        asked = None if partitions is None else [wanted(topic=t, partitions=p) for t, p in partitions.items()]
        message = ElectLeadersRequest(election_type=kind, topic_partitions=asked, timeout_ms=1_000)
        return await call(self.elect_leaders, message, version)

    def count(self, name: str) -> int:
        return len(self.cluster.image.topics_by_name[name].leader_epochs)


@pytest.fixture
def admin(fake_clock: ManualClock) -> Admin:
    return Admin(fake_clock)


def growing(name: str, count: int, *assignments: list[int]) -> Any:
    assigned = [Assigned(broker_ids=brokers) for brokers in assignments] if assignments else None
    return Growing(name=name, count=count, assignments=assigned)


# -- CreatePartitions


async def test_a_request_of_very_many_topics_costs_what_it_names(admin: Admin) -> None:
    """Looked through once per topic, these would hold the agent's loop for minutes."""
    names = [f"t{number}" for number in range(9_000)]
    results = await admin.grow(*(growing(name, 2) for name in [*names, "t0"]))
    codes = [result.error_code for result in results]
    assert (codes[0], codes[-1]) == (ErrorCode.invalid_request, ErrorCode.invalid_request)
    assert set(codes[1:-1]) == {ErrorCode.unknown_topic_or_partition}


@pytest.mark.parametrize("version", versions_of(37))
async def test_topics_grow_and_the_answer_comes_when_the_image_knows(admin: Admin, version: int) -> None:
    admin.api.add_topic("a", 2)
    admin.api.add_topic("b", 1)
    admin.api.add_agent(7)
    results = await admin.grow(growing("a", 5), growing("b", 2, [7]), version=version)
    assert [(result.name, result.error_code) for result in results] == [("a", 0), ("b", 0)]
    assert (admin.count("a"), admin.count("b")) == (5, 2)
    grown = admin.cluster.image.topics_by_name["b"]
    assert [grown.assignment(index).preferred for index in range(2)] == [(), (7,)]
    assert admin.cluster.image.topics_by_name["a"].undeleted_partition_count == 5


REFUSED = {
    "as many": (growing("t", 3), ErrorCode.invalid_partitions),
    "fewer": (growing("t", 2), ErrorCode.invalid_partitions),
    "negative": (growing("t", -1), ErrorCode.invalid_partitions),
    "unknown": (growing("nope", 3), ErrorCode.unknown_topic_or_partition),
    "the metadata topic": (growing("__cluster_metadata", 3), ErrorCode.unknown_topic_or_partition),
    "too few assigned": (growing("t", 5, [1]), ErrorCode.invalid_replica_assignment),
    "assigned to no agent": (growing("t", 4, []), ErrorCode.invalid_replica_assignment),
    "assigned to an unknown agent": (growing("t", 4, [99]), ErrorCode.invalid_replica_assignment),
    "assigned twice": (growing("t", 4, [1, 1]), ErrorCode.invalid_replica_assignment),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refused_topic_leaves_its_neighbour_alone(admin: Admin, case: str) -> None:
    admin.api.add_topic("t", 3)
    admin.api.add_topic("neighbour")
    wanted, code = REFUSED[case]
    refused, neighbour = await admin.grow(wanted, growing("neighbour", 2))
    assert refused.error_code == code
    assert refused.error_message
    assert neighbour.error_code == 0
    assert (admin.count("t"), admin.count("neighbour")) == (3, 2)


@pytest.mark.requirement("X7")
async def test_partitions_of_the_cluster_are_bounded(admin: Admin) -> None:
    """Counted over all topics."""
    for name in ("t", "u", "v"):
        admin.api.add_topic(name)
    await admin.cluster.catch_up()
    before = sum(admin.count(name) for name in ("t", "u", "v"))
    (first,) = await admin.grow(growing("t", 10_000))
    left = 20_000 - before - (10_000 - admin.count("u"))
    (full,) = await admin.grow(growing("u", admin.count("u") + left + 1))
    assert (first.error_code, full.error_code) == (0, ErrorCode.policy_violation)
    assert admin.limits_reached == ["max.partitions"]
    (last,) = await admin.grow(growing("u", admin.count("u") + left))
    assert last.error_code == 0
    assert sum(admin.count(name) for name in ("t", "u", "v")) == 20_000


async def test_a_topic_named_twice_and_too_many_partitions(admin: Admin) -> None:
    admin.api.add_topic("t")
    twice = await admin.grow(growing("t", 2), growing("t", 3))
    assert [result.error_code for result in twice] == [ErrorCode.invalid_request] * 2
    (many,) = await admin.grow(growing("t", 10_002))
    assert many.error_code == ErrorCode.policy_violation
    assert admin.count("t") == 1


async def test_validation_alone_changes_nothing(admin: Admin) -> None:
    admin.api.add_topic("t")
    before = list(admin.api.log)
    good, bad = await admin.grow(growing("t", 2), growing("nope", 2), validate_only=True)
    assert (good.error_code, bad.error_code) == (0, ErrorCode.unknown_topic_or_partition)
    assert admin.api.log == before


async def test_who_grew_it_first_wins(admin: Admin) -> None:
    topic_id = admin.api.add_topic("t")
    admin.api.before_append = lambda: admin.api.add_partitions(topic_id, 1, 3)
    (result,) = await admin.grow(growing("t", 3))
    assert result.error_code == ErrorCode.invalid_partitions
    assert admin.count("t") == 3


async def test_a_lost_answer_is_recognised_by_its_result(admin: Admin) -> None:
    admin.api.add_topic("t")
    admin.api.fail_after["create_partitions"] = [OutcomeUnknownError("lost")]
    (result,) = await admin.grow(growing("t", 3))
    assert (result.error_code, admin.count("t")) == (0, 3)
    assert admin.api.calls["create_partitions"] == 1


async def test_an_unreachable_metastore_times_out(admin: Admin) -> None:
    admin.api.add_topic("t")
    admin.api.fail_before["create_partitions"] = [UnavailableError("down")]
    (result,) = await admin.grow(growing("t", 3))
    assert (result.error_code, admin.count("t")) == (ErrorCode.request_timed_out, 1)


async def test_a_log_that_keeps_moving_ends_at_the_deadline(admin: Admin, fake_clock: ManualClock) -> None:
    admin.api.add_topic("t")

    def race() -> None:
        fake_clock.jump(0.3)
        admin.api.add_topic(f"racer-{len(admin.api.log)}")
        admin.api.before_append = race

    admin.api.before_append = race
    (result,) = await fake_clock.run(admin.grow(growing("t", 3)))
    assert result.error_code == ErrorCode.request_timed_out


# -- DescribeTopicPartitions


async def test_pages_go_by_name_and_index(admin: Admin) -> None:
    for name, count in (("b", 3), ("a", 2), ("c", 1)):
        admin.api.add_topic(name, count)
    admin.api.add_agent(1)
    await admin.cluster.catch_up()
    first = await admin.page(limit=3)
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in first.topics] == [("a", [0, 1]), ("b", [0])]
    assert (first.next_cursor.topic_name, first.next_cursor.partition_index) == ("b", 1)
    second = await admin.page(limit=3, cursor=("b", 1))
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in second.topics] == [("b", [1, 2]), ("c", [0])]
    assert second.next_cursor is None
    partition = first.topics[0].partitions[0]
    assert (partition.leader_id, partition.error_code) == (1, 0)
    assert (partition.eligible_leader_replicas, partition.last_known_elr, partition.offline_replicas) == ([], [], [])


async def test_named_topics_alone_and_what_is_missing(admin: Admin) -> None:
    topic_id = admin.api.add_topic("a")
    page = await admin.page("a", "nope", "a/b", "__cluster_metadata")
    assert [(topic.name, topic.error_code) for topic in page.topics] == [
        ("__cluster_metadata", 0),
        ("a", 0),
        ("a/b", ErrorCode.invalid_topic_exception),
        ("nope", ErrorCode.unknown_topic_or_partition),
    ]
    assert page.topics[1].topic_id == topic_id
    assert page.topics[0].is_internal
    admin.api.fail_before["read_metadata"] = [UnavailableError("down")]
    assert (await admin.page("nope")).topics[0].error_code == ErrorCode.leader_not_available
    (refused,) = (await admin.page("a", cursor=("a", -1))).topics
    assert refused.error_code == ErrorCode.invalid_request


@hypothesis_settings(max_examples=50)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(1, 5), max_size=6), st.integers(1, 7))
async def test_the_pages_together_are_every_partition_once(topics: dict[str, int], limit: int) -> None:
    admin = Admin(ManualClock())
    for name, count in topics.items():
        admin.api.add_topic(name, count)
    await admin.cluster.catch_up()
    seen: list[tuple[str, int]] = []
    cursor = None
    while True:
        page = await admin.page(limit=limit, cursor=cursor)
        seen += [(topic.name, p.partition_index) for topic in page.topics for p in topic.partitions]
        if page.next_cursor is None:
            break
        assert sum(len(topic.partitions) for topic in page.topics) == limit
        cursor = (page.next_cursor.topic_name, page.next_cursor.partition_index)
    assert seen == sorted((name, index) for name, count in topics.items() for index in range(count))


# -- ElectLeaders


@pytest.mark.parametrize("version", versions_of(43))
async def test_nothing_is_left_to_elect(admin: Admin, version: int) -> None:
    admin.api.add_topic("t", 2)
    nobody = (await admin.elect({"t": [0]}, version)).replica_election_results
    assert nobody[0].partition_result[0].error_code == ErrorCode.preferred_leader_not_available
    admin.api.add_agent(1)
    answer = await admin.elect({"t": [0, 5], "nope": [0]}, version)
    found = {
        (r.topic, p.partition_id): p.error_code for r in answer.replica_election_results for p in r.partition_result
    }
    unknown = ErrorCode.unknown_topic_or_partition
    assert found == {("t", 0): ErrorCode.election_not_needed, ("t", 5): unknown, ("nope", 0): unknown}
    everything = await admin.elect(None, version)
    assert (everything.replica_election_results, getattr(everything, "error_code", 0)) == ([], 0)


async def test_an_unknown_kind_of_election_is_refused(admin: Admin) -> None:
    assert (await admin.elect({"t": [0]}, kind=2)).error_code == ErrorCode.invalid_request
    admin.api.fail_before["read_metadata"] = [UnavailableError("down")]
    assert (await admin.elect({"t": [0]})).error_code == ErrorCode.request_timed_out


async def test_what_real_clients_sent_is_answered(admin: Admin) -> None:
    for _, request in captured_requests(37):
        assert all(r.error_code for r in read_reply(request, await admin.create_partitions(request)).results)
    for _, request in captured_requests(43):
        read_reply(request, await admin.elect_leaders(request))
    for _, request in captured_requests(75):
        assert read_reply(request, await admin.describe(request)).next_cursor is None
