"""Metadata, DescribeCluster, FindCoordinator and InitProducerId, in every version."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from kafka.protocol.admin import DescribeClusterRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.cluster import Cluster
from headrace.agent.limits.refusal_log import RefusalLog
from headrace.agent.topics.metadata.described_topics import DescribedTopics
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.agent.topics.metadata.routing_requests import DescribeCluster, FindCoordinator
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.agent.transactions.producer_ids import BLOCK_IDS, BLOCK_SECONDS, ProducerIds
from headrace.agent.transactions.producer_requests import InitProducerId
from headrace.metastore.keys import partition_key
from headrace.metastore.log.kip631_records import FenceBrokerRecord, RemoveTopicRecord
from headrace.metastore.postgres.sql_files import function_files
from headrace.protocol.internal_topics import INTERNAL_TOPICS
from headrace.protocol.request import RequestHandler
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.client_calls import a_request, call, captured_requests, read_reply, versions_of
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import an_agent
from tests.manual_clock import ManualClock

METADATA, FIND_COORDINATOR, INIT_PRODUCER_ID, DESCRIBE_CLUSTER = 3, 10, 22, 60


class World:
    """An agent with handlers, and two neighbours in other zones."""

    def __init__(self, clock: ManualClock, *, auto_create_topics: bool = True) -> None:
        self.clock = clock
        self.api = FakeClusterApi(clock)
        self.cluster: Cluster = an_agent(self.api)
        creation = TopicCreation(self.cluster, self.api, clock, random.Random(5), lambda: TopicDefaults(1, 1))
        self.handlers: dict[int, RequestHandler] = {
            METADATA: Metadata(
                self.cluster,
                DescribedTopics(self.cluster, creation, lambda: auto_create_topics),
                on_refused=RefusalLog().refused,
                shared=None,
                counts=None,
            ),
            FIND_COORDINATOR: FindCoordinator(self.cluster, shared=None),
            INIT_PRODUCER_ID: self.init_producer_id(),
            DESCRIBE_CLUSTER: DescribeCluster(self.cluster, shared=None),
        }

    def init_producer_id(self) -> InitProducerId:
        """Make a handler with new blocks of ids."""
        return InitProducerId(self.producer_ids(), self.cluster, self.api, lambda: 900_000)  # type: ignore[arg-type]

    def producer_ids(self) -> ProducerIds:
        return ProducerIds(self.api, self.clock)  # type: ignore[arg-type]

    async def metadata(self, *names: str, version: int = 12, **more: Any) -> Any:
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        client_id = more.pop("client_id", "test")
        message = MetadataRequest(topics=topics, **{"allow_auto_topic_creation": False, **more})
        return await call(self.handlers[METADATA], message, version, client_id=client_id)

    async def all_topics(self, version: int, **request: Any) -> Any:
        message = MetadataRequest(topics=[] if version == 0 else None, allow_auto_topic_creation=False)
        return await call(self.handlers[METADATA], message, version, **request)


@pytest.fixture
async def world(fake_clock: ManualClock) -> World:
    world = World(fake_clock)
    world.api.add_agent(1, "zone-a")
    world.api.add_agent(2, "zone-b")
    world.api.add_agent(3, "zone-c")
    world.api.append(FenceBrokerRecord(broker_id=3, broker_epoch=world.api.agents[3].epoch))
    world.api.add_topic("orders", 20)
    world.api.add_topic("audit", 1)
    await world.cluster.catch_up()
    return world


@pytest.mark.parametrize("version", versions_of(METADATA))
async def test_all_topics_with_live_agents_only(world: World, version: int) -> None:
    answer = await world.all_topics(version)
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(1, "agent-1", 9092), (2, "agent-2", 9092)]
    assert [t.name for t in answer.topics] == ["audit", "orders"]
    orders = world.cluster.image.topics_by_name["orders"]
    for partition in answer.topics[1].partitions:
        leader = world.cluster.leader(partition_key(orders.topic_number, partition.partition_index))
        assert leader is not None
        assert partition.error_code == 0
        assert partition.leader_id == leader.node_id
        assert partition.replica_nodes == partition.isr_nodes == [leader.node_id]
        assert partition.leader_epoch == (0 if version >= 7 else -1)
    assert len(answer.topics[1].partitions) == 20
    if version >= 1:
        assert answer.controller_id in (1, 2)
        assert [b.rack for b in answer.brokers] == ["zone-a", "zone-b"]
        assert not answer.topics[0].is_internal
    if version >= 2:
        assert answer.cluster_id == "cluster-id"
    if version >= 10:
        assert answer.topics[1].topic_id == orders.topic_id


@pytest.mark.parametrize("version", [v for v in versions_of(METADATA) if v > 0])
async def test_an_empty_list_asks_for_no_topics(world: World, version: int) -> None:
    assert (await world.metadata(version=version)).topics == []


@pytest.mark.parametrize("version", versions_of(METADATA))
async def test_named_topics_and_unknown_ones(world: World, version: int) -> None:
    world.api.add_topic("fresh")  # the image does not hold it yet
    orders, fresh, nope, illegal = (
        await world.metadata("orders", "fresh", "nope", "no/way", version=max(version, 4))
    ).topics
    assert (orders.name, orders.error_code, len(orders.partitions)) == ("orders", 0, 20)
    assert (fresh.name, fresh.error_code, len(fresh.partitions)) == ("fresh", 0, 1)
    assert (nope.name, nope.error_code) == ("nope", ErrorCode.unknown_topic_or_partition)
    assert illegal.error_code == ErrorCode.invalid_topic_exception


@pytest.mark.parametrize("name", INTERNAL_TOPICS)
async def test_topics_that_only_kafka_has_are_never_created(
    fake_clock: ManualClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """A reader gets an error at once instead of an empty topic, and the operator the reason, once a minute."""
    world = World(fake_clock)
    world.api.add_agent(1)
    await world.cluster.catch_up()
    for _ in range(3):
        (topic,) = (await world.metadata(name, allow_auto_topic_creation=True, client_id="burrow")).topics
        assert (topic.error_code, topic.partitions) == (ErrorCode.invalid_topic_exception, [])
    assert name not in (await world.cluster.catch_up()).topics_by_name
    (line,) = [line for line in caplog.messages if line.startswith("request refused")]
    assert "client_id=burrow" in line
    assert INTERNAL_TOPICS[name] in line


@pytest.mark.requirement("C8")
@pytest.mark.parametrize("version", [12, 13])
async def test_topics_by_id(world: World, version: int) -> None:
    orders = world.cluster.image.topics_by_name["orders"].topic_id
    audit = world.cluster.image.topics_by_name["audit"].topic_id
    world.api.append(RemoveTopicRecord(topic_id=audit))
    await world.cluster.catch_up()
    asked = [MetadataRequest.MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in (orders, audit)]
    message = MetadataRequest(topics=asked, allow_auto_topic_creation=True)
    found, gone = (await call(world.handlers[METADATA], message, version)).topics
    assert (found.name, found.topic_id, len(found.partitions)) == ("orders", orders, 20)
    assert (gone.name, gone.topic_id, gone.error_code) == (None, audit, ErrorCode.unknown_topic_id)


@pytest.mark.parametrize("version", [10, 11])
async def test_ids_are_refused_before_version_12_as_in_kafka(world: World, version: int) -> None:
    orders = world.cluster.image.topics_by_name["orders"].topic_id
    asked = [MetadataRequest.MetadataRequestTopic(name="orders", topic_id=orders)]
    (topic,) = (await call(world.handlers[METADATA], MetadataRequest(topics=asked), version)).topics
    assert topic.error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("version", versions_of(METADATA))
async def test_a_named_topic_is_created_where_that_is_allowed(world: World, version: int) -> None:
    allowed = version < 4 or version % 2 == 0
    (topic,) = (await world.metadata("new", version=version, allow_auto_topic_creation=allowed)).topics
    assert topic.error_code == (0 if allowed else ErrorCode.unknown_topic_or_partition)
    assert ("new" in world.cluster.image.topics_by_name) == allowed


@pytest.mark.parametrize("version", versions_of(METADATA))
async def test_a_topic_that_was_deleted_is_created_again_after_an_answer_without_it(world: World, version: int) -> None:
    """As with Kafka, so that a client can wait for the end of the deletion."""
    deleted = world.cluster.image.topics_by_name["orders"].topic_id
    assert await world.api.delete_topics(len(world.api.log), [deleted])
    first, new = (await world.metadata("orders", "new", version=version, allow_auto_topic_creation=True)).topics
    assert (first.name, first.error_code, len(first.partitions)) == ("orders", ErrorCode.unknown_topic_or_partition, 0)
    assert (new.name, new.error_code) == ("new", 0)
    (second,) = (await world.metadata("orders", version=version, allow_auto_topic_creation=True)).topics
    assert second.error_code == 0
    created = world.cluster.image.topics_by_name["orders"].topic_id
    assert created != deleted
    assert await world.api.delete_topics(len(world.api.log), [created])
    world.api.add_topic("orders")
    (third,) = (await world.metadata("orders", version=version, allow_auto_topic_creation=True)).topics
    assert third.error_code == 0, "another client created it"


async def test_auto_creation_can_be_switched_off(fake_clock: ManualClock) -> None:
    world = World(fake_clock, auto_create_topics=False)
    (topic,) = (await world.metadata("new", allow_auto_topic_creation=True)).topics
    assert topic.error_code == ErrorCode.unknown_topic_or_partition
    assert world.api.log == []


async def test_auto_creation_keeps_kafkas_rules_and_names_each_topic_once(world: World) -> None:
    topics = (await world.metadata("or.ders", "or_ders", "x", "x", "a b", allow_auto_topic_creation=True)).topics
    codes = {topic.name: topic.error_code for topic in topics}
    illegal = ErrorCode.invalid_topic_exception
    assert codes == {"or.ders": illegal, "or_ders": illegal, "x": 0, "a b": illegal}
    assert len(topics) == 4


async def test_while_the_metastore_is_away_known_topics_are_still_found(world: World) -> None:
    world.api.fail_before["read_metadata"] = [UnavailableError("down")]
    known, unknown = (await world.metadata("orders", "nope", allow_auto_topic_creation=True)).topics
    assert known.error_code == 0
    assert unknown.error_code == ErrorCode.leader_not_available  # clients ask again


async def test_a_cluster_without_a_live_agent_has_no_leaders(fake_clock: ManualClock) -> None:
    world = World(fake_clock)
    world.api.add_topic("orders")
    await world.cluster.catch_up()
    answer = await world.all_topics(12)
    (partition,) = answer.topics[0].partitions
    assert (answer.controller_id, answer.brokers) == (-1, [])
    assert (partition.leader_id, partition.error_code) == (-1, ErrorCode.leader_not_available)
    assert partition.replica_nodes == []


@pytest.mark.requirement("W15")
@pytest.mark.parametrize("zone", ["zone-a", "zone-b"])
async def test_a_client_that_names_its_zone_is_sent_to_agents_of_it(world: World, zone: str) -> None:
    home = {"zone-a": 1, "zone-b": 2}[zone]
    answer = await world.all_topics(12, client_id=f"orders,zone={zone}")
    assert {p.leader_id for t in answer.topics for p in t.partitions} == {home}
    elsewhere = await world.all_topics(12, client_id="orders,zone=zone-c")  # its only agent is fenced
    assert {p.leader_id for t in elsewhere.topics for p in t.partitions} == {1, 2}


async def test_operations_are_listed_for_those_who_ask(world: World) -> None:
    asked = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
    answer = await world.metadata("orders", version=8, **asked)
    assert answer.authorized_operations == {5, 7, 8, 9, 10, 11, 12}
    assert answer.topics[0].authorized_operations == {3, 4, 5, 6, 7, 8, 10, 11}
    silent = await world.metadata("orders", version=8)
    assert not silent.authorized_operations
    assert not silent.topics[0].authorized_operations


async def test_answers_are_encoded_once_per_image(world: World) -> None:
    handler = world.handlers[METADATA]
    body = MetadataRequest(topics=None).encode(version=12)
    first, second = a_request(METADATA, 12, body), a_request(METADATA, 12, body, correlation_id=77)
    one, two = await handler(first), await handler(second)
    assert one.buffers is not None
    assert two.buffers is not None
    assert one.buffers[1] is two.buffers[1]
    assert [t.name for t in read_reply(second, two).topics] == ["audit", "orders"]
    world.api.add_topic("more")
    await world.cluster.catch_up()
    renewed = await handler(first)
    assert [t.name for t in read_reply(first, renewed).topics] == ["audit", "more", "orders"]


async def test_an_answer_with_an_unknown_topic_is_not_kept(world: World) -> None:
    (before,) = (await world.metadata("soon")).topics
    world.api.add_topic("soon")
    (after,) = (await world.metadata("soon")).topics
    assert (before.error_code, after.error_code) == (ErrorCode.unknown_topic_or_partition, 0)


@pytest.mark.parametrize("version", versions_of(DESCRIBE_CLUSTER))
async def test_describe_cluster(world: World, version: int) -> None:
    asked = {"include_cluster_authorized_operations": True, "include_fenced_brokers": True}
    answer = await call(world.handlers[DESCRIBE_CLUSTER], DescribeClusterRequest(**asked), version)
    assert (answer.error_code, answer.cluster_id) == (0, "cluster-id")
    assert answer.controller_id in (1, 2)
    assert answer.authorized_operations == {5, 7, 8, 9, 10, 11, 12}
    fenced = {broker.broker_id: broker.is_fenced for broker in answer.brokers}
    assert fenced == ({1: False, 2: False, 3: True} if version >= 2 else {1: False, 2: False})


@pytest.mark.parametrize(
    ("endpoint_type", "code"), [(2, ErrorCode.mismatched_endpoint_type), (9, ErrorCode.unsupported_endpoint_type)]
)
async def test_describe_cluster_knows_broker_endpoints_only(world: World, endpoint_type: int, code: int) -> None:
    answer = await call(world.handlers[DESCRIBE_CLUSTER], DescribeClusterRequest(endpoint_type=endpoint_type), 1)
    assert (answer.error_code, answer.brokers) == (code, [])


@pytest.mark.parametrize("version", versions_of(FIND_COORDINATOR))
async def test_every_agent_names_the_same_coordinator(world: World, version: int) -> None:
    for number in range(20):
        group = f"group-{number}"
        expected = world.cluster.coordinator(group)
        assert expected is not None
        message = FindCoordinatorRequest(key=group, key_type=0, coordinator_keys=[group])
        answer = await call(world.handlers[FIND_COORDINATOR], message, version)
        found = answer.coordinators[0] if version >= 4 else answer
        assert (found.error_code, found.node_id, found.host, found.port) == (
            0,
            expected.node_id,
            expected.host,
            expected.port,
        )
        assert version < 4 or found.key == group


async def test_several_coordinators_in_one_request(world: World) -> None:
    message = FindCoordinatorRequest(key_type=0, coordinator_keys=["a", "b", "c"])
    answer = await call(world.handlers[FIND_COORDINATOR], message, 4)
    assert [c.key for c in answer.coordinators] == ["a", "b", "c"]


@pytest.mark.parametrize("version", [v for v in versions_of(FIND_COORDINATOR) if v > 0])
@pytest.mark.parametrize(
    ("key_type", "code"),
    [(1, ErrorCode.transactional_id_authorization_failed), (2, ErrorCode.invalid_request)],
)
async def test_other_coordinators_are_refused_finally(world: World, version: int, key_type: int, code: int) -> None:
    message = FindCoordinatorRequest(key="tx", key_type=key_type, coordinator_keys=["tx"])
    answer = await call(world.handlers[FIND_COORDINATOR], message, version)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id) == (code, -1)
    assert "support" in found.error_message


async def test_no_live_agent_no_coordinator(fake_clock: ManualClock) -> None:
    world = World(fake_clock)
    answer = await call(world.handlers[FIND_COORDINATOR], FindCoordinatorRequest(key="g"), 0)
    assert (answer.error_code, answer.node_id) == (ErrorCode.coordinator_not_available, -1)


@pytest.mark.parametrize(("producer_id", "epoch"), [(7, -1), (-1, 3)])
async def test_half_an_identity_is_refused(world: World, producer_id: int, epoch: int) -> None:
    message = InitProducerIdRequest(transactional_id=None, producer_id=producer_id, producer_epoch=epoch)
    answer = await call(world.handlers[INIT_PRODUCER_ID], message, 3)
    assert (answer.error_code, answer.producer_id) == (ErrorCode.invalid_request, -1)
    assert (await call(world.handlers[INIT_PRODUCER_ID], message, 2)).error_code == 0, "its fields came later"


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("version", versions_of(INIT_PRODUCER_ID))
async def test_every_idempotent_producer_gets_a_fresh_id(world: World, version: int) -> None:
    handler = world.handlers[INIT_PRODUCER_ID]
    answers = [
        await call(handler, InitProducerIdRequest(transactional_id=None, producer_id=7, producer_epoch=3), version)
        for _ in range(5)
    ]
    assert {(a.error_code, a.producer_epoch) for a in answers} == {(0, 0)}
    assert len({a.producer_id for a in answers}) == 5
    assert world.api.calls["allocate_producer_ids"] == 1


@pytest.mark.requirement("W7")
async def test_producer_ids_stay_fresh_across_agents_blocks_and_lost_answers(fake_clock: ManualClock) -> None:
    world = World(fake_clock)
    one, two = world.init_producer_id(), world.init_producer_id()
    world.api.fail_after["allocate_producer_ids"] = [OutcomeUnknownError("lost")]
    message = InitProducerIdRequest(transactional_id=None)
    refused = await call(one, message, 4)
    assert (refused.error_code, refused.producer_id) == (ErrorCode.coordinator_load_in_progress, -1)
    calls = [call(agent, message, 4) for _ in range(1_500) for agent in (one, two)]
    answers = await asyncio.gather(*calls)
    assert {a.error_code for a in answers} == {0}
    assert len({a.producer_id for a in answers}) == 3_000
    assert world.api.calls["allocate_producer_ids"] == 1 + 2 * 2


@pytest.mark.requirement("W7")
async def test_an_old_block_of_ids_is_dropped(fake_clock: ManualClock) -> None:
    """A commit takes a producer for as old as its block, but for this time (state_may_have_expired)."""
    world = World(fake_clock)
    ids = world.producer_ids()
    first = [await ids.next(), await ids.next()]
    await fake_clock.advance(BLOCK_SECONDS - 1)
    assert await ids.next() == first[1] + 1
    await fake_clock.advance(1)
    assert await ids.next() >= first[0] + BLOCK_IDS
    assert world.api.calls["allocate_producer_ids"] == 2
    source = next(file.text for file in function_files() if "FUNCTION producer_id_block_ms" in file.text)
    assert f"RETURN {int(2 * BLOCK_SECONDS * 1000)};" in source


async def test_a_transactional_id_is_refused_finally(world: World) -> None:
    message = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1_000)
    answer = await call(world.handlers[INIT_PRODUCER_ID], message, 4)
    assert (answer.error_code, answer.producer_id) == (ErrorCode.transactional_id_authorization_failed, -1)


@pytest.mark.parametrize("api_key", [METADATA, FIND_COORDINATOR, INIT_PRODUCER_ID, DESCRIBE_CLUSTER])
async def test_what_real_clients_sent_is_answered(world: World, api_key: int) -> None:
    for label, request in captured_requests(api_key):
        answer = read_reply(request, await world.handlers[api_key](request))
        assert answer.version == request.api_version, label
