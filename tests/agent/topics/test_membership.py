"""Membership, features and the quorum over the protocol, on Postgres."""

from __future__ import annotations

import uuid
from typing import Any
from unittest.mock import MagicMock

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch_snapshot.v0.request import SnapshotId
from kio.static.primitive import i32, i64

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.serve.handlers import register_handlers
from headrace.config.settings import Settings
from headrace.metastore.api.agents import (
    CHOSEN_FEATURES,
    CLUSTER_LINKS,
    KAFKA_FEATURES,
    LEADER_SPREAD,
    LOW_LATENCY,
    METADATA_FORMAT,
    OPTIONAL_FEATURES,
    SEALED_SECRETS,
    SEGMENT_KEYS,
    SHARE_VERSION,
    STREAMS_VERSION,
    SUPPORTED_FEATURES,
    TOPIC_TABLES,
    TRANSACTION_VERSION,
    AgentRegistration,
    agent_features,
)
from headrace.metastore.api.cluster import SettingReport, StoredSnapshot
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.metastore.log.own_records import RemoveFeatureLevelRecord
from headrace.metastore.log.replay import apply
from headrace.metastore.log.snapshot import encode_snapshot, load_snapshot
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.protocol.api_keys import ApiKey
from headrace.storage.records.codec import decode_records
from tests.agent.client_calls import versions_of
from tests.agent.topics.membership_world import CONTROLLER, SESSION_MS, World


def _registration(world: World, node_id: int, incarnation: uuid.UUID, **more: Any) -> dict[str, Any]:
    return {
        "broker_id": node_id,
        "cluster_id": world.api.cluster_id,
        "incarnation_id": incarnation,
        "listeners": [("Listener", {"name": "PLAINTEXT", "host": "h", "port": 9092, "security_protocol": 0})],
        "features": [
            ("Feature", {"name": METADATA_FORMAT, "min_supported_version": 1, "max_supported_version": 4}),
            ("Feature", {"name": TRANSACTION_VERSION, "min_supported_version": 0, "max_supported_version": 2}),
            ("Feature", {"name": TOPIC_TABLES, "min_supported_version": 1, "max_supported_version": 1}),
            ("Feature", {"name": SHARE_VERSION, "min_supported_version": 0, "max_supported_version": 1}),
            ("Feature", {"name": STREAMS_VERSION, "min_supported_version": 0, "max_supported_version": 1}),
            ("Feature", {"name": LOW_LATENCY, "min_supported_version": 1, "max_supported_version": 1}),
            ("Feature", {"name": CLUSTER_LINKS, "min_supported_version": 1, "max_supported_version": 1}),
            ("Feature", {"name": LEADER_SPREAD, "min_supported_version": 1, "max_supported_version": 10}),
        ],
        "rack": "a",
        "is_migrating_zk_broker": False,
        "log_dirs": (),
        "previous_broker_epoch": -1,
    } | more


@pytest.fixture
async def world(metastore: PostgresMetastore) -> World:
    world = World(metastore)
    await world.view.catch_up()
    return world


@pytest.mark.requirement("C10")
@pytest.mark.parametrize("version", versions_of(ApiKey.BROKER_REGISTRATION))
async def test_an_agent_registers_and_is_unfenced_once_it_has_caught_up(world: World, version: int) -> None:
    await world.lead()
    incarnation = uuid.uuid4()
    first = await world.ask(ApiKey.BROKER_REGISTRATION, version, **_registration(world, 3, incarnation))
    again = await world.ask(ApiKey.BROKER_REGISTRATION, version, **_registration(world, 3, incarnation))
    assert first.error_code is again.error_code is ErrorCode.none
    assert first.broker_epoch == again.broker_epoch >= 0
    beat = {"broker_id": 3, "broker_epoch": first.broker_epoch, "want_fence": False, "want_shut_down": False}
    late = await world.ask(ApiKey.BROKER_HEARTBEAT, 1, current_metadata_offset=0, **beat)
    assert (late.error_code, late.is_caught_up, late.is_fenced) == (ErrorCode.none, False, True)
    head = await world.api.cluster.metadata_head()
    there = await world.ask(ApiKey.BROKER_HEARTBEAT, 0, current_metadata_offset=head, **beat)
    assert (there.is_caught_up, there.is_fenced, there.should_shut_down) == (True, False, False)
    cordoned = await world.ask(
        ApiKey.BROKER_HEARTBEAT, 2, current_metadata_offset=head, cordoned_log_dirs=(uuid.uuid4(),), **beat
    )
    assert (cordoned.error_code, cordoned.is_fenced) == (ErrorCode.none, False)
    stale = await world.ask(
        ApiKey.BROKER_HEARTBEAT, 1, current_metadata_offset=head, **(beat | {"broker_epoch": first.broker_epoch + 9})
    )
    assert stale.error_code is ErrorCode.stale_broker_epoch


@pytest.mark.requirement("C10")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": "3Db5QLSqSZieL3rJBUUegA"}, ErrorCode.inconsistent_cluster_id),
        ({"features": []}, ErrorCode.unsupported_version),
        ({"broker_id": 4}, ErrorCode.duplicate_broker_registration),
        ({"broker_id": -1}, ErrorCode.invalid_request),
        ({"listeners": []}, ErrorCode.invalid_request),
    ],
)
async def test_registrations_that_are_refused(world: World, fields: dict[str, Any], code: ErrorCode) -> None:
    await world.lead()
    await world.agent(4)
    answer = await world.ask(ApiKey.BROKER_REGISTRATION, 4, **_registration(world, 3, uuid.uuid4(), **fields))
    assert (answer.error_code, answer.broker_epoch) == (code, -1)


@pytest.mark.requirement("C10")
async def test_only_the_active_controller_answers_registrations_and_heartbeats(world: World) -> None:
    await world.lead(controller_id=8)
    answer = await world.ask(ApiKey.BROKER_REGISTRATION, 4, **_registration(world, 3, uuid.uuid4()))
    assert answer.error_code is ErrorCode.not_controller
    beat = {"broker_id": 3, "broker_epoch": 0, "current_metadata_offset": 0, "want_fence": False}
    refused = await world.ask(ApiKey.BROKER_HEARTBEAT, 1, want_shut_down=False, **beat)
    assert refused.error_code is ErrorCode.not_controller
    assert world.view.image.agents == {}


@pytest.mark.requirement("C10")
async def test_a_heartbeat_of_an_unknown_broker_is_refused(world: World) -> None:
    await world.lead()
    beat = {"broker_id": 3, "broker_epoch": 0, "current_metadata_offset": 0, "want_fence": False}
    answer = await world.ask(ApiKey.BROKER_HEARTBEAT, 1, want_shut_down=False, **beat)
    assert answer.error_code is ErrorCode.broker_id_not_registered


@pytest.mark.requirement("C10")
async def test_only_an_id_that_once_was_registered_may_be_unregistered_again(world: World) -> None:
    await world.agent(3)
    await world.lead()
    for node_id, code in ((99, ErrorCode.broker_id_not_registered), (3, 0), (3, 0)):
        answer = await world.ask(ApiKey.UNREGISTER_BROKER, 0, broker_id=node_id)
        assert answer.error_code == code
    await world.view.catch_up()
    restarted = load_snapshot(encode_snapshot(world.view.image))
    assert restarted.unregistered == world.view.image.unregistered
    assert list(restarted.unregistered) == [3]


@pytest.mark.requirement("C10")
async def test_unregistering_twice_is_no_error_and_a_standby_refuses(world: World) -> None:
    await world.agent(3)
    refused = await world.ask(ApiKey.UNREGISTER_BROKER, 0, broker_id=3)
    assert refused.error_code is ErrorCode.not_controller
    await world.lead()
    for _ in range(2):
        answer = await world.ask(ApiKey.UNREGISTER_BROKER, 0, broker_id=3)
        assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
        assert 3 not in (await world.view.catch_up()).agents


@pytest.mark.requirement("C10")
@pytest.mark.parametrize("version", versions_of(ApiKey.DESCRIBE_CLUSTER))
async def test_fenced_agents_are_described_on_request(world: World, version: int) -> None:
    await world.agent(3)
    await world.agent(4, unfence=False)
    asked = {"include_cluster_authorized_operations": False, "endpoint_type": 1}
    plain = await world.ask(ApiKey.DESCRIBE_CLUSTER, version, include_fenced_brokers=False, **asked)
    whole = await world.ask(ApiKey.DESCRIBE_CLUSTER, version, include_fenced_brokers=True, **asked)
    assert [b.broker_id for b in plain.brokers] == [3]
    if version >= 2:
        assert [(b.broker_id, b.is_fenced) for b in whole.brokers] == [(3, False), (4, True)]


@pytest.mark.requirement("C14")
@pytest.mark.parametrize("version", versions_of(ApiKey.DESCRIBE_QUORUM))
async def test_the_quorum_is_the_active_controller(world: World, version: int) -> None:
    epoch = await world.agent(3)
    await world.agent(CONTROLLER)
    await world.agent(4, unfence=False)
    head = await world.api.cluster.metadata_head()
    await world.api.cluster.heartbeat(3, epoch, metadata_offset=head, want_fence=False, session_timeout_ms=SESSION_MS)
    topics = [
        ("TopicData", {"topic_name": "__cluster_metadata", "partitions": [("PartitionData", {"partition_index": 0})]})
    ]
    nobody = await world.ask(ApiKey.DESCRIBE_QUORUM, version, topics=topics)
    assert nobody.topics[0].partitions[0].leader_id == -1
    await world.lead()
    answer = await world.ask(ApiKey.DESCRIBE_QUORUM, version, topics=topics)
    (partition,) = answer.topics[0].partitions
    assert (partition.leader_id, partition.high_watermark) == (CONTROLLER, head)
    assert [(r.replica_id, r.log_end_offset) for r in partition.current_voters] == [(CONTROLLER, head)]
    assert [(r.replica_id, r.log_end_offset) for r in partition.observers] == [(3, head), (4, 0)]
    if version >= 1:
        following, silent = partition.observers
        assert following.last_caught_up_timestamp == following.last_fetch_timestamp > 0
        assert (silent.last_caught_up_timestamp, silent.last_fetch_timestamp > 0) == (-1, True)
    if version >= 2:
        assert [node.node_id for node in answer.nodes] == [CONTROLLER]
    other = [("TopicData", {"topic_name": "t", "partitions": [("PartitionData", {"partition_index": 0})]})]
    twice = (await world.ask(ApiKey.DESCRIBE_QUORUM, version, topics=topics * 2)).topics[1].partitions[0]
    assert (twice.error_code, twice.observers) == (ErrorCode.invalid_request, ())
    unknown = await world.ask(ApiKey.DESCRIBE_QUORUM, version, topics=other)
    assert unknown.topics[0].partitions[0].error_code is ErrorCode.unknown_topic_or_partition


async def _set_format(world: World, version: int, level: int, upgrade_type: int, name: str = METADATA_FORMAT) -> Any:
    update = {"feature": name, "max_version_level": level}
    update |= {"upgrade_type": upgrade_type} if version > 0 else {"allow_downgrade": upgrade_type > 1}
    return await world.ask(ApiKey.UPDATE_FEATURES, version, feature_updates=[("FeatureUpdateKey", update)])


@pytest.mark.parametrize("version", versions_of(ApiKey.UPDATE_FEATURES))
async def test_feature_levels_go_up_and_on_request_down(world: World, version: int) -> None:
    await world.agent(3)
    start = world.view.image.metadata_format
    assert start == 4
    refused = await _set_format(world, version, 1, upgrade_type=1)
    assert refused.error_code is ErrorCode.invalid_update_version
    assert (await _set_format(world, version, 1, upgrade_type=2)).error_code is ErrorCode.none
    assert world.view.image.metadata_format == 1
    assert (await _set_format(world, version, 2, upgrade_type=1)).error_code is ErrorCode.none
    assert world.view.image.metadata_format == 2
    unknown = await _set_format(world, version, 1, 1, name="no.such.feature")
    assert unknown.error_code is ErrorCode.invalid_update_version
    assert "no.such.feature" in (unknown.error_message or "")
    for name, level in (("group.version", 1), ("metadata.version", 27)):
        assert (await _set_format(world, version, level, 1, name=name)).error_code is ErrorCode.none
        assert (
            await _set_format(world, version, level - 1, 2, name=name)
        ).error_code is ErrorCode.invalid_update_version


async def test_a_validated_update_changes_nothing(world: World) -> None:
    update = {"feature": METADATA_FORMAT, "max_version_level": 1, "upgrade_type": 2}
    fields = {"feature_updates": [("FeatureUpdateKey", update)], "validate_only": True}
    assert (await world.ask(ApiKey.UPDATE_FEATURES, 1, **fields)).error_code is ErrorCode.none
    assert (await world.view.catch_up()).metadata_format == 4
    assert (await world.ask(ApiKey.UPDATE_FEATURES, 1, feature_updates=[])).error_code is ErrorCode.invalid_request


@pytest.mark.requirement("P2")
async def test_counts_do_not_change_while_a_running_compactor_cannot_read_the_log_then(world: World) -> None:
    await world.agent(3)
    await _set_format(world, 1, 2, upgrade_type=2)
    older = SettingReport(uuid.uuid4(), "host-17", ("compactor",), None, {}, features={METADATA_FORMAT: 3})
    await world.api.cluster.report_settings(older)
    refused = await _set_format(world, 1, 4, 1)
    assert refused.error_code is ErrorCode.invalid_update_version
    assert "processes=host-17" in (refused.error_message or "")
    assert (await _set_format(world, 1, 3, 1)).error_code is ErrorCode.none
    await world.api.cluster.withdraw_settings(older.incarnation_id)
    assert (await _set_format(world, 1, 4, 1)).error_code is ErrorCode.none
    assert world.view.image.metadata_format == 4


@pytest.mark.requirement("X13")
async def test_small_files_are_not_inline_while_a_running_compactor_does_not_know_where_they_are(world: World) -> None:
    await world.agent(3)
    await world.api.cluster.append_records(world.view.image.offset, [RemoveFeatureLevelRecord(name=LOW_LATENCY)])
    await world.view.catch_up()
    older = SettingReport(uuid.uuid4(), "host-17", ("compactor",), None, {}, features={SEGMENT_KEYS: 1})
    await world.api.cluster.report_settings(older)
    refused = await _set_format(world, 1, 1, 1, name=LOW_LATENCY)
    assert refused.error_code is ErrorCode.invalid_update_version
    assert "processes=host-17" in (refused.error_message or "")
    assert not (await world.view.catch_up()).has_low_latency
    await world.api.cluster.withdraw_settings(older.incarnation_id)
    assert (await _set_format(world, 1, 1, 1, name=LOW_LATENCY)).error_code is ErrorCode.none
    assert world.view.image.has_low_latency


async def test_segments_have_no_keys_while_a_running_compactor_does_not_know_them(world: World) -> None:
    await world.agent(3)
    older = SettingReport(uuid.uuid4(), "host-17", ("compactor",), None, {}, features={})
    await world.api.cluster.report_settings(older)
    await world.api.cluster.report_settings(SettingReport(uuid.uuid4(), "host-18", ("compactor",), None, {}))
    refused = await _set_format(world, 1, 1, 1, name=SEGMENT_KEYS)
    assert refused.error_code is ErrorCode.invalid_update_version
    assert "processes=host-17" in (refused.error_message or "")
    assert SEGMENT_KEYS not in (await world.view.catch_up()).features
    await world.api.cluster.withdraw_settings(older.incarnation_id)
    assert (await _set_format(world, 1, 1, 1, name=SEGMENT_KEYS)).error_code is ErrorCode.none
    assert SEGMENT_KEYS in world.view.image.features


@pytest.mark.parametrize("version", [3, 4])
async def test_api_versions_shows_supported_and_finalized_features(world: World, version: int) -> None:
    answer = await world.ask(ApiKey.API_VERSIONS, version, client_software_name="t", client_software_version="1")
    supported = [(f.name, f.min_version, f.max_version) for f in answer.supported_features]
    kafkas = [("group.version", 1), ("metadata.version", 27)]
    assert supported == [
        *((name, level, level) for name, level in kafkas),
        (METADATA_FORMAT, 1, 4),
        (SEGMENT_KEYS, 1, 1),
        # as Kafka: older clients misread a lowest level of 0
        *([(TRANSACTION_VERSION, 0, 2)] if version > 3 else []),
        (TOPIC_TABLES, 1, 1),
        *([(SHARE_VERSION, 0, 1), (STREAMS_VERSION, 0, 1)] if version > 3 else []),
        (LOW_LATENCY, 1, 1),
        (CLUSTER_LINKS, 1, 1),
        (LEADER_SPREAD, 1, 10),
    ]
    finalized = sorted((f.name, f.max_version_level) for f in answer.finalized_features)
    own = {
        CLUSTER_LINKS: 1,
        LOW_LATENCY: 1,
        METADATA_FORMAT: 4,
        SHARE_VERSION: 1,
        STREAMS_VERSION: 1,
        TOPIC_TABLES: 1,
        TRANSACTION_VERSION: 2,
    }
    assert finalized == sorted([*kafkas, *own.items()])
    assert answer.finalized_features_epoch == world.view.image.offset
    assert {row.api_key for row in answer.api_keys} >= {45, 46, 55, 57, 60, 62, 63, 64}


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("has_keys", [False, True])
async def test_a_feature_is_offered_if_its_highest_level_is_accepted(
    world: World, sealed: bool, has_keys: bool
) -> None:
    """`metadata.secrets` rises by `headrace storage seal-secrets`: before, no client is offered a level that fails."""
    features = agent_features(has_secret_keys=has_keys or sealed)
    await world.api.cluster.register_agent(AgentRegistration(3, uuid.uuid4(), "agent-3", 9092, None, features=features))
    if sealed:
        level = FeatureLevelRecord(name=SEALED_SECRETS, min_feature_level=1, max_feature_level=1)
        assert await world.api.cluster.append_records(await world.api.cluster.metadata_head(), [level])
    await world.view.catch_up()
    answer = await world.ask(ApiKey.API_VERSIONS, 4, client_software_name="t", client_software_version="1")
    offered = {feature.name: feature.max_version for feature in answer.supported_features}
    assert (SEALED_SECRETS in offered) == sealed
    for name, levels in {**KAFKA_FEATURES, **SUPPORTED_FEATURES, **CHOSEN_FEATURES, **OPTIONAL_FEATURES}.items():
        accepted = (await _set_format(world, 1, levels.max_level, 1, name=name)).error_code is ErrorCode.none
        assert accepted == (offered.get(name) == levels.max_level), name


async def _piece(
    world: World, end_offset: int, position: int, topic: str = "__cluster_metadata", times: int = 1
) -> Any:
    wanted = ("PartitionSnapshot", {
        "partition": 0,
        "current_leader_epoch": -1,
        "snapshot_id": SnapshotId(end_offset=i64(end_offset), epoch=i32(0)),
        "position": position,
    })  # fmt: skip
    topics = [("TopicSnapshot", {"name": topic, "partitions": [wanted] * times})]
    answer = await world.ask(ApiKey.FETCH_SNAPSHOT, 0, topics=topics, max_bytes=50)
    return answer.topics[0].partitions[0]


@pytest.mark.requirement("C3")
async def test_the_newest_snapshot_is_fetched_in_pieces(world: World) -> None:
    await world.topic("orders", 3)
    assert (await _piece(world, -1, 0)).error_code is ErrorCode.snapshot_not_found
    lease = await world.api.controller.hold_controller_lease(CONTROLLER, uuid.uuid4(), 60_000)
    image = await world.view.catch_up()
    await world.api.controller.save_snapshot(
        lease.controller_epoch, StoredSnapshot(image.offset, encode_snapshot(image))
    )
    first = await _piece(world, -1, 0)
    assert (first.error_code, first.snapshot_id.end_offset, len(first.unaligned_records)) == (0, image.offset, 50)
    data = bytes(first.unaligned_records)
    while len(data) < first.size:
        data += (await _piece(world, image.offset, len(data))).unaligned_records
    assert (await _piece(world, -1, 0, times=2)).error_code is ErrorCode.invalid_request, "it would be sent twice"
    values = [record.value or b"" for record in decode_records(memoryview(data))]
    assert apply(MetadataImage(), values).topics_by_name.keys() == {"orders"}
    assert (await _piece(world, image.offset, first.size)).error_code is ErrorCode.position_out_of_range
    assert (await _piece(world, image.offset - 1, 0)).error_code is ErrorCode.snapshot_not_found
    assert (await _piece(world, -1, 0, "orders")).error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.requirement("X7")
def test_membership_is_not_served_to_clients() -> None:
    """A client could register agents that other clients are sent to, or make agents leave."""
    served = _served_to_clients()
    assert not {ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT, ApiKey.FETCH_SNAPSHOT} & served
    assert ApiKey.UNREGISTER_BROKER in served, "operators use it through any agent, as with Kafka"


def _served_to_clients() -> set[int]:
    dispatcher = Dispatcher()
    anything: Any = MagicMock()
    register_handlers(dispatcher, anything, anything, anything, Authorizer(Settings(), anything), anything)
    return {api.key for api in dispatcher.served()}
