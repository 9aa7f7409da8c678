"""CreateTopics and DeleteTopics: Kafka's rules, one answer per topic, and compare-and-append."""

from __future__ import annotations

import logging
import random
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.cluster import Cluster
from headrace.agent.limits.refusal_log import LINES_PER_MINUTE
from headrace.agent.topics.deletions import DeleteTopics
from headrace.agent.topics.topic_creation import CreateTopics, TopicCreation
from headrace.agent.topics.topic_rules import AcceptedTopic, TopicDefaults, TopicRefusal, WantedTopic, judge
from headrace.config import topic_configs
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.kip631_records import FenceBrokerRecord, RemoveTopicRecord
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.client_calls import call, captured_requests, read_reply, versions_of
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.manual_clock import ManualClock

Topic = CreateTopicsRequest.CreatableTopic
Assignment = Topic.CreatableReplicaAssignment
Config = Topic.CreatableTopicConfig


class Admin:
    """One agent's topic handlers on a fake metastore."""

    def __init__(self, clock: ManualClock) -> None:
        self.api = FakeClusterApi(clock)
        self.cluster: Cluster = an_agent(self.api)
        creation = TopicCreation(self.cluster, self.api, clock, random.Random(3), lambda: TopicDefaults(4, 1))
        self.create_topics = CreateTopics(creation, EffectiveConfigs(Settings(message_max_bytes=5_000_000)))
        self.delete_topics = DeleteTopics(self.cluster, self.api, clock)

    async def create(self, *topics: Any, version: int = 7, validate_only: bool = False) -> Any:
        message = CreateTopicsRequest(topics=list(topics), timeout_ms=1_000, validate_only=validate_only)
        return (await call(self.create_topics, message, version)).topics

    async def delete(self, *names: str, version: int = 5) -> Any:
        message = DeleteTopicsRequest(topic_names=list(names), timeout_ms=1_000)
        return (await call(self.delete_topics, message, version)).responses

    async def delete_states(self, *topics: tuple[str | None, uuid.UUID | None]) -> Any:
        states = [DeleteTopicsRequest.DeleteTopicState(name=n, topic_id=i or uuid.UUID(int=0)) for n, i in topics]
        message = DeleteTopicsRequest(topics=states, timeout_ms=1_000)
        return (await call(self.delete_topics, message, 6)).responses


@pytest.fixture
def admin(fake_clock: ManualClock) -> Admin:
    return Admin(fake_clock)


def add_agents(admin: Admin) -> None:
    """7 and 8 are live, 9 is fenced."""
    for node_id in (7, 8, 9):
        admin.api.add_agent(node_id)
    admin.api.append(FenceBrokerRecord(broker_id=9, broker_epoch=admin.api.agents[9].epoch))


def topic(name: str, partitions: int = -1, replicas: int = -1, **more: Any) -> Any:
    return Topic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=more.get("assignments", []),
        configs=more.get("configs", []),
    )


@pytest.mark.parametrize("version", versions_of(19))
async def test_created_topics_are_in_the_image_when_the_answer_comes(admin: Admin, version: int) -> None:
    first, second = await admin.create(
        topic("orders", 6, 3, configs=[Config(name="retention.ms", value=" 5 ")]),
        topic("plain"),
        version=version,
    )
    assert (first.error_code, second.error_code) == (0, 0)
    image = admin.cluster.image
    assert len(image.topics_by_name["orders"].leader_epochs) == 6
    assert len(image.topics_by_name["plain"].leader_epochs) == 4  # num.partitions
    assert image.topic_configs("orders") == {"retention.ms": "5"}
    if version >= 5:
        assert (first.num_partitions, first.replication_factor) == (6, 3)
        configs = {config.name: (config.value, config.config_source) for config in first.configs}
        assert configs["retention.ms"] == ("5", 1)
        assert configs["max.message.bytes"] == ("5000000", 4)
        assert configs["segment.ms"] == ("604800000", 5)
    if version >= 7:
        assert first.topic_id == image.topics_by_name["orders"].topic_id


async def test_validate_only_says_what_would_be_and_does_nothing(admin: Admin) -> None:
    good, bad = await admin.create(topic("orders", 2), topic("bad", 0), validate_only=True)
    assert (good.error_code, good.num_partitions) == (0, 2)
    assert bad.error_code == ErrorCode.invalid_partitions
    assert admin.api.log == []


def assigned(*brokers: list[int], partitions: int = -1, first: int = 0) -> Any:
    """Topic t with the agents of each partition, counted from `first`."""
    places = [Assignment(partition_index=index, broker_ids=ids) for index, ids in enumerate(brokers, first)]
    return topic("t", partitions, assignments=places)


def configured(name: str, value: str | None) -> Any:
    """Topic t with this config."""
    return topic("t", configs=[Config(name=name, value=value)])


REFUSED = {
    "no name": (topic(""), ErrorCode.invalid_topic_exception),
    "dot": (topic("."), ErrorCode.invalid_topic_exception),
    "too long": (topic("x" * 250), ErrorCode.invalid_topic_exception),
    "slash": (topic("a/b"), ErrorCode.invalid_topic_exception),
    "newline": (topic("a\n"), ErrorCode.invalid_topic_exception),
    "exists": (topic("taken.name"), ErrorCode.topic_already_exists),
    "collides": (topic("taken_name"), ErrorCode.invalid_topic_exception),
    "no partitions": (topic("t", 0), ErrorCode.invalid_partitions),
    "negative partitions": (topic("t", -2), ErrorCode.invalid_partitions),
    "no replicas": (topic("t", 1, 0), ErrorCode.invalid_replication_factor),
    "assignment and count": (assigned([1], partitions=1), ErrorCode.invalid_request),
    "assignment with a gap": (assigned([1], first=1), ErrorCode.invalid_replica_assignment),
    "assignment to no agent": (assigned([]), ErrorCode.invalid_replica_assignment),
    "assigned unevenly": (assigned([7], [7, 8]), ErrorCode.invalid_replica_assignment),
    "assigned to an unknown agent": (assigned([7, 99]), ErrorCode.invalid_replica_assignment),
    "assigned to the fenced": (assigned([9]), ErrorCode.invalid_replica_assignment),
    "unknown config": (configured("retention.hours", "1"), ErrorCode.invalid_config),
    "null config": (configured("retention.ms", None), ErrorCode.invalid_config),
    "no such policy": (configured("cleanup.policy", "compacted"), ErrorCode.invalid_config),
    "wrong config": (configured("retention.ms", "-2"), ErrorCode.invalid_config),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refused_topic_leaves_its_neighbour_alone(admin: Admin, case: str) -> None:
    admin.api.add_topic("taken.name")
    add_agents(admin)
    wanted, code = REFUSED[case]
    refused, neighbour = await admin.create(wanted, topic("neighbour"))
    assert refused.error_code == code
    assert refused.error_message
    assert neighbour.error_code == 0
    assert "neighbour" in admin.cluster.image.topics_by_name
    assert "t" not in admin.cluster.image.topics_by_name


async def test_refused_configs_leave_some_lines_with_client_and_topic(
    admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """Not every application shows its user why; and none can fill the log."""
    add_agents(admin)
    for number in range(LINES_PER_MINUTE + 5):
        await admin.create(topic(f"t{number}", configs=[Config(name="retention.ms", value="-2")]), topic("no name", 0))
    lines = [record for record in caplog.records if record.getMessage().startswith("request refused: ")]
    assert [line.levelno for line in lines] == [logging.WARNING] * LINES_PER_MINUTE
    assert "client_id=test left_out=0 reason=topic t0: " in lines[0].getMessage()
    assert "retention.ms" in lines[0].getMessage()


async def test_too_many_partitions_in_one_request(admin: Admin) -> None:
    results = await admin.create(topic("a", 9_999), topic("b", 2), topic("bad", 0))
    assert [r.error_code for r in results[:2]] == [ErrorCode.policy_violation] * 2
    assert results[2].error_code == ErrorCode.invalid_partitions
    assert admin.api.log == []


async def test_a_manual_assignment_gives_the_partition_count_and_who_is_preferred(admin: Admin) -> None:
    add_agents(admin)
    wanted = {1: [8, 7], 0: [7, 8], 2: [7, 9]}
    assignments = [Assignment(partition_index=index, broker_ids=brokers) for index, brokers in wanted.items()]
    (result,) = await admin.create(topic("t", assignments=assignments))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 2)
    created = admin.cluster.image.topics_by_name["t"]
    assert {index: list(created.assignment(index).preferred) for index in range(3)} == wanted
    assert not any(created.assignment(index).under_way for index in range(3))


async def test_an_assignment_is_judged_before_it_is_there_not_after(admin: Admin) -> None:
    """As when the answer of the append got lost, and the agent that was named has gone meanwhile."""
    add_agents(admin)
    (result,) = await admin.create(assigned([8]))
    await admin.api.unregister_agent(8, admin.api.agents[8].epoch)
    image = await admin.cluster.catch_up()
    again, another = (WantedTopic("t", i, assignments=[(0, [8])]) for i in (result.topic_id, uuid.uuid4()))
    assert isinstance(judge([again], image, TopicDefaults(1, 1))[0], AcceptedTopic)
    assert isinstance(judge([another], image, TopicDefaults(1, 1))[0], TopicRefusal)


async def test_a_name_given_twice_is_refused_both_times(admin: Admin) -> None:
    results = await admin.create(topic("t"), topic("t"), topic("u"))
    assert [r.error_code for r in results] == [ErrorCode.invalid_request, ErrorCode.invalid_request, 0]


async def test_lookalikes_in_one_request_are_refused(admin: Admin) -> None:
    results = await admin.create(topic("a.b"), topic("a_b"))
    assert {r.error_code for r in results} == {ErrorCode.invalid_topic_exception}


@pytest.mark.requirement("C1")
async def test_a_name_that_another_agent_took_meanwhile_is_not_created_twice(admin: Admin) -> None:
    theirs: list[uuid.UUID] = []
    admin.api.before_append = lambda: theirs.append(admin.api.add_topic("orders"))
    orders, other = await admin.create(topic("orders"), topic("other"))
    assert orders.error_code == ErrorCode.topic_already_exists
    assert other.error_code == 0
    assert admin.cluster.image.topics_by_name["orders"].topic_id == theirs[0]
    assert admin.api.calls["create_topics"] == 2


async def test_a_lost_answer_is_recognised_by_the_topic_id(admin: Admin) -> None:
    admin.api.fail_after["create_topics"] = [OutcomeUnknownError("lost")]
    (result,) = await admin.create(topic("orders"))
    assert result.error_code == 0
    assert result.topic_id == admin.cluster.image.topics_by_name["orders"].topic_id
    assert admin.api.calls["create_topics"] == 1


async def test_an_unreachable_metastore_times_out(admin: Admin) -> None:
    admin.api.fail_before["create_topics"] = [UnavailableError("down")]
    good, bad = await admin.create(topic("orders"), topic("bad", 0))
    assert good.error_code == ErrorCode.request_timed_out
    assert bad.error_code == ErrorCode.invalid_partitions
    assert admin.cluster.image.topics_by_name == {}


async def test_a_log_that_keeps_moving_ends_at_the_deadline(admin: Admin, fake_clock: ManualClock) -> None:
    def race() -> None:
        fake_clock.jump(0.3)
        admin.api.add_topic(f"racer-{admin.api.calls['create_topics']}")
        admin.api.before_append = race

    admin.api.before_append = race
    (result,) = await fake_clock.run(admin.create(topic("orders")))
    assert result.error_code == ErrorCode.request_timed_out
    assert 2 <= admin.api.calls["create_topics"] <= 5


@pytest.mark.parametrize("others", [1, 3])
async def test_a_change_that_others_precede_is_tried_again_although_it_is_late(
    admin: Admin, fake_clock: ManualClock, others: int
) -> None:
    """Three at once on a busy machine: the first append of each took longer than their clients wait."""
    left = others

    def race() -> None:
        nonlocal left
        fake_clock.jump(60.0)
        admin.api.add_topic(f"racer-{len(admin.api.log)}")
        left -= 1
        admin.api.before_append = race if left else None

    admin.api.add_topic("old")
    admin.api.before_append = race
    (result,) = await fake_clock.run(admin.create(topic("orders")))
    assert (result.error_code, left) == (0, 0)
    left, admin.api.before_append = others, race
    (result,) = await fake_clock.run(admin.delete("old"))
    assert (result.error_code, left) == (0, 0)
    assert "old" not in admin.cluster.image.topics_by_name


@pytest.mark.parametrize("version", [v for v in versions_of(20) if v < 6])
async def test_deletion_by_name(admin: Admin, version: int) -> None:
    admin.api.add_topic("orders")
    gone, unknown = await admin.delete("orders", "nope", version=version)
    assert (gone.name, gone.error_code) == ("orders", 0)
    assert (unknown.name, unknown.error_code) == ("nope", ErrorCode.unknown_topic_or_partition)
    assert admin.cluster.image.topics_by_name == {}


@pytest.mark.requirement("C8")
async def test_deletion_by_id(admin: Admin) -> None:
    first, second = admin.api.add_topic("first"), admin.api.add_topic("second")
    stranger = uuid.uuid4()
    by_id, unknown, by_name = await admin.delete_states((None, first), (None, stranger), ("second", None))
    assert (by_id.name, by_id.topic_id, by_id.error_code) == ("first", first, 0)
    assert (unknown.name, unknown.topic_id, unknown.error_code) == (None, stranger, ErrorCode.unknown_topic_id)
    assert (by_name.name, by_name.topic_id, by_name.error_code) == ("second", second, 0)
    assert admin.cluster.image.topics_by_id == {}


async def test_malformed_deletions_are_refused(admin: Admin) -> None:
    topic_id = admin.api.add_topic("orders")
    results = await admin.delete_states(("orders", topic_id), (None, None))
    assert [r.error_code for r in results] == [ErrorCode.invalid_request] * 2
    by_name, by_id = await admin.delete_states(("orders", None), (None, topic_id))
    assert (by_name.error_code, by_id.error_code) == (ErrorCode.invalid_request, 0)
    admin.api.add_topic("orders")
    twice = await admin.delete_states(("orders", None), ("orders", None))
    assert [r.error_code for r in twice] == [ErrorCode.invalid_request] * 2
    assert "orders" in admin.cluster.image.topics_by_name


@pytest.mark.requirement("C8")
async def test_a_topic_created_again_under_the_name_survives_the_deletion(admin: Admin) -> None:
    old = admin.api.add_topic("orders")
    new: list[uuid.UUID] = []

    def replace() -> None:
        admin.api.append(RemoveTopicRecord(topic_id=old))
        new.append(admin.api.add_topic("orders"))

    admin.api.before_append = replace
    (result,) = await admin.delete("orders")
    assert result.error_code == 0
    assert admin.cluster.image.topics_by_name["orders"].topic_id == new[0]


async def test_a_deletion_with_a_lost_answer_is_done_once(admin: Admin) -> None:
    admin.api.add_topic("orders")
    admin.api.fail_after["delete_topics"] = [OutcomeUnknownError("lost")]
    (result,) = await admin.delete("orders")
    assert result.error_code == 0
    assert admin.api.calls["delete_topics"] == 1


async def test_what_real_clients_sent_is_answered(admin: Admin) -> None:
    for _, request in captured_requests(19):
        assert all(topic.error_code == 0 for topic in read_reply(request, await admin.create_topics(request)).topics)
        admin = Admin(ManualClock())  # clients name the same topics
    for _, request in captured_requests(20):
        answer = read_reply(request, await admin.delete_topics(request))
        assert all(topic.error_code == ErrorCode.unknown_topic_or_partition for topic in answer.responses)


async def test_a_deletion_without_the_metastore_times_out(admin: Admin) -> None:
    admin.api.add_topic("orders")
    admin.api.fail_before["read_metadata"] = [UnavailableError("down")]
    (result,) = await admin.delete("orders")
    assert result.error_code == ErrorCode.request_timed_out


def test_every_default_is_a_valid_value() -> None:
    for name, config in topic_configs.TOPIC_CONFIGS.items():
        assert topic_configs.why_invalid(name, config.default) is None


@hypothesis_settings(max_examples=200)
@given(st.sampled_from(sorted(topic_configs.TOPIC_CONFIGS)), st.text(max_size=12))
def test_an_accepted_value_can_be_parsed(name: str, value: str) -> None:
    if topic_configs.why_invalid(name, value) is None:
        match topic_configs.TOPIC_CONFIGS[name].kind:
            case "int" | "long":
                int(value.strip())
            case "double":
                assert 0 <= float(value) <= 1
            case "boolean":
                assert value.strip().lower() in ("true", "false")


@pytest.mark.parametrize("value", ["1_000", "٣", "1e3", "", "nan", "0x10"])
def test_what_python_reads_as_a_number_but_kafka_does_not(value: str) -> None:
    assert topic_configs.why_invalid("retention.ms", value) is not None


@pytest.mark.requirement("X7")
async def test_topics_and_partitions_of_the_cluster_are_bounded(admin: Admin) -> None:
    """Clients that only ask for metadata leave half to those who create topics on purpose."""
    image = admin.cluster.image
    limits = TopicDefaults(1, 1, topics_max=4, partitions_max=40)
    ids = [uuid.UUID(int=number + 1) for number in range(9)]

    def codes(partitions: list[int], defaults: TopicDefaults) -> set[int]:
        wanted = [WantedTopic(f"t{n}", ids[n], count, 1) for n, count in enumerate(partitions)]
        judged = judge(wanted, image, defaults)
        return {int(each.code) if isinstance(each, TopicRefusal) else 0 for each in judged}

    assert codes([1] * 4, limits) == {0}
    assert codes([1] * 5, limits) == {int(ErrorCode.policy_violation)}
    assert codes([40], limits) == {0}
    assert codes([41], limits) == {int(ErrorCode.policy_violation)}
    assert codes([1] * 2, limits.for_automatic_creation()) == {0}
    assert codes([1] * 3, limits.for_automatic_creation()) == {int(ErrorCode.policy_violation)}
    assert codes([21], limits.for_automatic_creation()) == {int(ErrorCode.policy_violation)}
