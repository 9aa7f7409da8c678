"""The audit log: what has a line, that no value forges one, and that failures cannot fill a disk."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from prometheus_client import CollectorRegistry

from headrace.agent.access.audit import FAILURES_AT_ONCE, LOGGER, LONGEST_VALUE, AuditLog, audited, open_audit_log
from headrace.agent.apis.all_apis import ROWS
from headrace.agent.apis.cluster import ACCESS_ROWS
from headrace.agent.apis.dispatch import Dispatcher
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import ALONE
from headrace.protocol.request import ClientConnection, Request
from tests.agent.access.admin import test_delegation_tokens as tokens
from tests.agent.access.admin.access_world import World
from tests.agent.access.test_sasl import World as SaslWorld
from tests.agent.client_calls import a_request
from tests.agent_process import AgentUnderTest, format_storage
from tests.manual_clock import ManualClock

SECONDS_MAX = 60


class AuditSink:
    """An audit log, and its lines for a test."""

    def __init__(self, clock: ManualClock) -> None:
        self.lines: list[str] = []
        self.registry = CollectorRegistry()
        self.log = AuditLog(clock, self.registry, self.lines.append)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def sink(fake_clock: ManualClock) -> AuditSink:
    return AuditSink(fake_clock)


def _request(client_id: str | None = "app") -> Request:
    request = a_request(ApiKey.FETCH, 12, b"", client_id=client_id)
    request.connection.principal = "User:alice"
    return request


@pytest.mark.requirement("X2")
def test_a_denial_has_all_that_an_operator_asks_for(sink: AuditSink) -> None:
    sink.log.denied(_request(), "READ", "TOPIC:orders")
    assert sink.events() == [
        {
            "time": "2023-11-14T22:13:20.000+00:00",
            "event": "denied",
            "principal": "User:alice",
            "client_id": "app",
            "host": "127.0.0.1",
            "listener": "PLAINTEXT",
            "api": "Fetch",
            "operation": "READ",
            "resource": "TOPIC:orders",
            "outcome": "denied",
        }
    ]


@pytest.mark.requirement("X2")
def test_a_clients_values_stay_one_line_of_bounded_length(sink: AuditSink) -> None:
    sink.log.denied(_request('x\n{"event":"change"}\u2028\x1b[2J'), "READ", "TOPIC:orders")
    sink.log.denied(_request("long" * 10_000), "READ", "TOPIC:orders")
    assert all(line.isascii() and line.isprintable() for line in sink.lines)
    assert all(len(line) < LONGEST_VALUE + 500 for line in sink.lines)
    assert [event["event"] for event in sink.events()] == ["denied", "denied"]


@pytest.mark.requirement("X2")
async def test_failures_are_limited_and_changes_are_not(sink: AuditSink, fake_clock: ManualClock) -> None:
    for _ in range(1000):
        sink.log.denied(_request(), "READ", "TOPIC:orders")
        sink.log.failed_authentication(ClientConnection(1, "10.0.0.1:5"), None, "PLAIN", "wrong password")
    assert len(sink.lines) == FAILURES_AT_ONCE
    sink.log.changed(_request(), "TOPIC:orders", None)
    assert len(sink.lines) == FAILURES_AT_ONCE + 1
    assert sink.events()[-1]["omitted_before"] == 2000 - FAILURES_AT_ONCE
    await fake_clock.advance(1.0)
    sink.log.denied(_request(), "READ", "TOPIC:orders")
    assert "omitted_before" not in sink.events()[-1]
    assert sink.registry.get_sample_value("headrace_audit_events_total", {"event": "denied"}) == 1001
    assert sink.registry.get_sample_value("headrace_audit_omitted_total") == 2000 - FAILURES_AT_ONCE


@pytest.mark.requirement("X2")
async def test_a_failed_authentication_has_a_line_without_the_password() -> None:
    world = SaslWorld()
    assert await world.scram("SCRAM-SHA-256", "alice", "hunter2") != 0
    (event,) = map(json.loads, world.audited)
    assert (event["event"], event["mechanism"], event["outcome"]) == ("authentication", "SCRAM-SHA-256", "failed")
    assert event["host"] == "127.0.0.1"
    assert "hunter2" not in world.audited[0]


def test_every_api_that_changes_the_cluster_is_audited() -> None:
    """A new API that changes something is in ALONE, so it needs lines in the audit log or a reason here."""
    not_administrative = {ApiKey.OFFSET_COMMIT, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
    of_share_consumers = {ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE}
    of_producers = {
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.INIT_PRODUCER_ID,
    }
    audited_keys = {api_key for api_key, row in ROWS.items() if row.changes is not None}
    assert audited_keys >= ALONE - not_administrative - of_producers - of_share_consumers


@pytest.mark.requirement("X2")
async def test_access_changes_have_lines_without_secrets(sink: AuditSink, fake_clock: ManualClock) -> None:
    world = World(fake_clock)
    plain = world._dispatcher
    world._dispatcher = Dispatcher()
    for api_key, handler in plain._handlers.items():
        world._dispatcher.register(api_key, audited(ACCESS_ROWS[api_key].changes, handler, sink.log))
    acl = {
        "resource_type": 2,
        "resource_name": "orders",
        "resource_pattern_type": 3,
        "principal": "User:bob",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    await world.ask(ApiKey.CREATE_ACLS, 2, creations=[("AclCreation", acl), ("AclCreation", acl | {"operation": 99})])
    wanted = {
        "resource_type_filter": 2,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    await world.ask(ApiKey.DELETE_ACLS, 2, filters=[("DeleteAclsFilter", wanted)])
    upsertion = {"name": "bob", "mechanism": 1, "iterations": 4096, "salt": b"SALT", "salted_password": b"hunter2"}
    await world.ask(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=[("ScramCredentialUpsertion", upsertion)]
    )
    entity = [("EntityData", {"entity_type": "user", "entity_name": None})]
    ops = [("OpData", {"key": "producer_byte_rate", "value": 5.0, "remove": False})]
    quota = [("EntryData", {"entity": entity, "ops": ops})]
    await world.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=quota, validate_only=False)
    await world.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=quota, validate_only=True)
    said = [(e["api"], e["resource"], e["outcome"], e.get("error")) for e in sink.events()]
    assert said == [
        ("CreateAcls", "TOPIC:orders", "success", None),
        ("CreateAcls", "TOPIC:orders", "failed", "INVALID_REQUEST"),
        ("DeleteAcls", "TOPIC:orders", "success", None),
        ("AlterUserScramCredentials", "USER:bob", "success", None),
        ("AlterClientQuotas", "CLIENT_QUOTA:user=<default>", "success", None),
    ]
    assert sink.events()[-1]["detail"] == "producer_byte_rate=5.0"
    assert "hunter2" not in "".join(sink.lines)


@pytest.mark.requirement("X2")
async def test_refused_tokens_have_lines(sink: AuditSink, fake_clock: ManualClock) -> None:
    """Their answers have times of -1, which kio does not read."""
    world = World(fake_clock)
    plain = world._dispatcher
    world._dispatcher = Dispatcher()
    for api_key, handler in plain._handlers.items():
        world._dispatcher.register(api_key, audited(ACCESS_ROWS[api_key].changes, handler, sink.log))
    await tokens.refusal(world, ApiKey.CREATE_DELEGATION_TOKEN, "User:ANONYMOUS", version=3)
    await tokens.refusal(world, ApiKey.RENEW_DELEGATION_TOKEN, "User:ANONYMOUS", version=2)
    said = [(e["api"], e["outcome"]) for e in sink.events()]
    assert said == [("CreateDelegationToken", "failed"), ("RenewDelegationToken", "failed")]


@pytest.fixture
def audit_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "audit.log"
    logger = logging.getLogger(LOGGER)
    level, before = logger.level, list(logger.handlers)
    open_audit_log(str(path))
    yield path
    for added in set(logger.handlers) - set(before):
        logger.removeHandler(added)
        added.close()
    logger.setLevel(level)


def test_a_file_that_was_moved_is_opened_again(audit_file: Path, fake_clock: ManualClock) -> None:
    log = AuditLog(fake_clock, CollectorRegistry())
    log.changed(_request(), "TOPIC:a", None)
    audit_file.rename(audit_file.with_suffix(".1"))
    log.changed(_request(), "TOPIC:b", None)
    assert json.loads(audit_file.with_suffix(".1").read_text())["resource"] == "TOPIC:a"
    assert json.loads(audit_file.read_text())["resource"] == "TOPIC:b"


@pytest.mark.requirement("X2")
def test_a_real_agent_writes_a_line_per_change(metastore_url: str, tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    cluster = {"metastore.url": metastore_url, "bucket": f"file://{tmp_path}"}
    format_storage(cluster)
    with AgentUnderTest({**cluster, "audit.log.path": path, "linger.ms": 5}) as agent:
        _change_everything({"bootstrap.servers": agent.kafka, "client.id": "ops"})
        assert agent.stop() == 0
    said = [json.loads(line) for line in path.read_text().splitlines()]
    assert {event["client_id"] for event in said} == {"ops"}
    assert [(e["api"], e["resource"], e.get("error")) for e in said] == [
        ("CreateTopics", "TOPIC:orders", None),
        ("CreateTopics", "TOPIC:orders", "TOPIC_ALREADY_EXISTS"),
        ("CreatePartitions", "TOPIC:orders", None),
        ("IncrementalAlterConfigs", "TOPIC:orders", None),
        ("AlterUserScramCredentials", "USER:bob", None),
        ("DeleteGroups", "GROUP:none", "GROUP_ID_NOT_FOUND"),
        ("DeleteTopics", "TOPIC:orders", None),
    ]
    assert "hunter2" not in path.read_text()


def _change_everything(settings: dict[str, str]) -> None:
    admin = AdminClient(settings)

    def finish(*asked: dict[Any, Any]) -> None:
        for futures in asked:
            for future in futures.values():
                future.exception(SECONDS_MAX)

    finish(admin.create_topics([NewTopic("orders", 1)]))
    finish(admin.create_topics([NewTopic("orders", 1)]))
    finish(admin.create_partitions([NewPartitions("orders", 2)]))
    entry = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    finish(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[entry])]))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    finish(admin.alter_user_scram_credentials([UserScramCredentialUpsertion("bob", info, b"hunter2")]))
    finish(admin.delete_consumer_groups(["none"]))
    producer = Producer(settings)
    producer.produce("orders", b"value")
    assert producer.flush(SECONDS_MAX) == 0
    finish(admin.delete_topics(["orders"]))
