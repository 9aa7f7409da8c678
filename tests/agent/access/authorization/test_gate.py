"""The gate: every API has a rule; what is handed on, what is refused, and what is reported."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from types import MappingProxyType

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from headrace.agent.access.audit import AuditLog
from headrace.agent.access.authorization.authorizer import Authorizer, reporting_authorizer
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import gate
from headrace.agent.apis.acl_table import RULES
from headrace.agent.groups.consumer.members import pattern_of
from headrace.agent.groups.consumer.topics import GroupTopics
from headrace.config.load import load
from headrace.config.settings import STANDARD_AUTHORIZER, Settings
from headrace.metastore.log.image import TopicImage
from headrace.metastore.log.own_records import UserScramKeysRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.protocol.link_requests import (
    LINKS_KEY,
    READS,
    LinkOp,
    LinkRequest,
    decode_link_response,
    encode_link_request,
)
from headrace.protocol.ordered_requests import (
    CLIENT_KEYS,
    GROUP_POSITION_KEY,
    LEADER_EPOCHS_KEY,
    GroupPositionRequest,
    PartitionPosition,
    decode_epochs_response,
    decode_position_response,
    encode_epochs_request,
    encode_position_request,
)
from headrace.protocol.own_requests import (
    SCALE_TOPIC_KEY,
    SET_PARTITION_COUNT_KEY,
    CountRequest,
    ScaleRequest,
    ScaleResponse,
    ScaleStep,
    ShownReader,
    decode_count_response,
    decode_scale_response,
    encode_count_request,
    encode_scale_request,
    encode_scale_response,
    some_groups,
)
from headrace.protocol.request import ClientConnection, Request, Response
from headrace.protocol.typed import schema
from headrace.storage.repetition import SECONDS
from tests.acl_matrix.case import build
from tests.agent.access.acls import a_grant
from tests.agent.access.authorization.gated import TOPIC_ID, Gated
from tests.agent.access.authorization.test_data_path import set_acls
from tests.agent.cluster.standing_view import StandingView
from tests.manual_clock import ManualClock


@pytest.mark.requirement("C13.2", "X2")
def test_every_api_has_a_row_with_its_versions_and_one_with_its_rule() -> None:
    assert RULES.keys() == {int(key) for key in APIS} | CLIENT_KEYS | {
        SCALE_TOPIC_KEY,
        SET_PARTITION_COUNT_KEY,
        LINKS_KEY,
    }


def test_a_handler_is_registered_as_it_is_if_acls_are_not_enforced() -> None:
    gated = Gated(ApiKey.METADATA)
    off = Authorizer(Settings(), gated.view)
    for api_key in RULES:
        assert gate(off, RULES[api_key], gated._serve) == gated._serve


@pytest.mark.requirement("C13.2", "X2")
@pytest.mark.parametrize("api_key", [ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT, ApiKey.FETCH_SNAPSHOT])
async def test_what_only_controllers_serve_needs_cluster_action(api_key: ApiKey) -> None:
    gated = Gated(api_key)
    for version in range(APIS[api_key].min_version, APIS[api_key].max_version + 1):
        assert (await gated.ask(version)).error_code == ErrorCode.cluster_authorization_failed
    assert not gated.seen
    gated.grant((AclOperation.CLUSTER_ACTION, "kafka-cluster"), of=AclResource.CLUSTER)
    assert (await gated.ask(APIS[api_key].max_version)).error_code == ErrorCode.none
    assert len(gated.seen) == 1


async def test_a_handler_sees_only_what_is_allowed() -> None:
    gated = Gated(ApiKey.DELETE_RECORDS)
    gated.grant((AclOperation.DELETE, "mine"))
    partitions = [{"partition_index": 3, "offset": 5}]
    answer = await gated.ask(2, topics=[{"name": name, "partitions": partitions} for name in ("mine", "theirs")])
    assert [topic.name for topic in gated.seen[0].topics] == ["mine"]
    (refused,) = answer.topics
    assert (refused.name, [p.partition_index for p in refused.partitions]) == ("theirs", [3])
    assert refused.partitions[0].error_code == ErrorCode.topic_authorization_failed
    assert [(d.principal, d.host, d.operation, d.resource_name, d.api_key) for d in gated.denials] == [
        ("User:alice", "10.0.0.1", AclOperation.DELETE, "theirs", ApiKey.DELETE_RECORDS)
    ]


async def test_topics_by_id_are_judged_by_name_and_an_unknown_id_never_reaches_the_handler() -> None:
    gated = Gated(ApiKey.DELETE_TOPICS)
    gated.grant((AclOperation.DESCRIBE, "known"))
    asked = [{"name": None, "topic_id": TOPIC_ID}, {"name": None, "topic_id": uuid.UUID(int=8)}]
    answer = await gated.ask(6, topics=asked)
    codes = {topic.topic_id: (topic.name, topic.error_code) for topic in answer.responses}
    assert codes == {
        TOPIC_ID: ("known", ErrorCode.topic_authorization_failed),
        uuid.UUID(int=8): (None, ErrorCode.unknown_topic_id),
    }
    assert not gated.seen
    gated.grant((AclOperation.WRITE, "other"))
    (hidden,) = (await gated.ask(6, topics=asked[:1])).responses
    assert (hidden.name, hidden.error_code) == (None, ErrorCode.topic_authorization_failed), "its name is not shown"


async def test_a_topic_that_may_not_be_described_looks_the_same_whether_it_exists_or_not() -> None:
    gated = Gated(ApiKey.DELETE_TOPICS)
    gated.grant((AclOperation.WRITE, "other"))
    answer = await gated.ask(5, topic_names=["known", "nothing"])
    assert {topic.error_code for topic in answer.responses} == {ErrorCode.topic_authorization_failed}


async def test_configs_of_a_new_topic_are_shown_only_with_a_grant() -> None:
    gated = Gated(ApiKey.CREATE_TOPICS)
    made = build(
        schema(ApiKey.CREATE_TOPICS, 7).response_type,
        {"topics": [{"name": "new", "topic_id": TOPIC_ID, "num_partitions": 3, "configs": ()}]},
    )
    gated.answer = {"topics": made.topics}
    gated.grant((AclOperation.CREATE, "new"))
    (shown,) = (await gated.ask(7, topics=[{"name": "new", "num_partitions": 3}])).topics
    failed = int(ErrorCode.topic_authorization_failed)
    assert (shown.error_code, shown.topic_config_error_code, shown.num_partitions) == (0, failed, -1)
    gated.grant((AclOperation.CREATE, "new"), (AclOperation.DESCRIBE_CONFIGS, "new"))
    (shown,) = (await gated.ask(7, topics=[{"name": "new", "num_partitions": 3}])).topics
    assert (shown.topic_config_error_code, shown.num_partitions) == (0, 3)


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("step", [ScaleStep.LOOK, ScaleStep.DOUBLE])
async def test_groups_that_read_a_topic_are_shown_to_who_may_describe_them(step: ScaleStep) -> None:
    readers = tuple(ShownReader(name, "consumer", "Stable", 1) for name in ("mine", "theirs"))
    refusal = f"have not committed all: {some_groups(['mine', 'theirs'])}"

    async def serve(request: Request) -> Response:
        answer = ScaleResponse(0, refusal, 4, 2, 1, readers)
        return Response(entity=answer, write=lambda entity: [encode_scale_response(request.correlation_id, entity)])

    gated = Gated(SCALE_TOPIC_KEY)
    gated._serve = serve  # type: ignore[method-assign]
    gated._handle = gate(gated.authorizer, RULES[SCALE_TOPIC_KEY], serve)
    operation = AclOperation.DESCRIBE if step is ScaleStep.LOOK else AclOperation.ALTER
    body = encode_scale_request(ScaleRequest("t", step, 1000), "c", 1)[4 + 8 + 2 + 1 :]
    gated.grant((operation, "t"))
    answer = decode_scale_response(memoryview(await gated.ask_raw(body)))
    assert (answer.readers, answer.partition_count) == ((), 4)
    assert answer.message is not None
    assert "mine" not in answer.message
    assert "theirs" not in answer.message
    topic = a_grant(operation, "t", AclResource.TOPIC)
    group = a_grant(AclOperation.DESCRIBE, "mine", AclResource.GROUP)
    set_acls(gated.view, frozenset(replace(acl, principal="User:alice") for acl in (topic, group)))
    answer = decode_scale_response(memoryview(await gated.ask_raw(body)))
    assert answer.readers == readers[:1]
    assert answer.message == "have not committed all: groups=mine, and 1 that you may not describe"


async def test_our_own_requests_are_judged() -> None:
    position = GroupPositionRequest("g", 1, "m", {"t": [PartitionPosition(0, True)]})
    gated = Gated(GROUP_POSITION_KEY)
    said = decode_position_response(memoryview(await gated.ask_raw(encode_position_request(position)))[4:])
    assert said.error_code == ErrorCode.group_authorization_failed
    gated = Gated(LEADER_EPOCHS_KEY)
    epochs = decode_epochs_response(memoryview(await gated.ask_raw(encode_epochs_request({"t": [0, 1]})))[4:])
    assert [each.error_code for each in epochs["t"]] == [ErrorCode.topic_authorization_failed] * 2
    gated = Gated(SET_PARTITION_COUNT_KEY)
    frame = encode_count_request(CountRequest("t", 2, 1000), "c", 1)
    body = frame[4 + 8 + 2 + 1 :]
    answer = decode_count_response(memoryview(await gated.ask_raw(body)))
    assert answer.error_code == ErrorCode.topic_authorization_failed
    gated.grant((AclOperation.ALTER, "t"))
    assert await gated.ask_raw(body) == b"served"


@pytest.mark.requirement("X2", "X14")
async def test_a_link_is_changed_with_alter_and_read_with_describe_on_the_cluster() -> None:
    gated = Gated(LINKS_KEY)
    set_linked(gated, "known")

    async def code(op: LinkOp, **more: bool) -> int:
        body = encode_link_request(LinkRequest(op=op, link="old", **more), "", 1)[4 + 8 + 2 :]
        answer = await gated.ask_raw(body)
        return 0 if answer == b"served" else decode_link_response(memoryview(answer)).error_code

    gated.grant((AclOperation.DESCRIBE, "kafka-cluster"), of=AclResource.CLUSTER)
    for op in LinkOp:
        is_read = op in READS
        assert await code(op) == (0 if is_read else ErrorCode.cluster_authorization_failed), op
    gated.grant((AclOperation.ALTER, "kafka-cluster"), of=AclResource.CLUSTER)
    assert [await code(op) for op in LinkOp] == [0] * len(LinkOp)
    assert await code(LinkOp.DROP, delete_topics=True) == ErrorCode.topic_authorization_failed
    gated.grant_also((AclOperation.DELETE, "known"), of=AclResource.TOPIC)
    assert await code(LinkOp.DROP, delete_topics=True) == 0


def set_linked(gated: Gated, topic: str) -> None:
    """Make the topic a copy of the link `old`."""
    configs = MappingProxyType({(2, topic): MappingProxyType({"link.name": "old"})})
    gated.view.head = replace(gated.view.head, configs=configs)


async def test_a_changed_acl_or_principal_counts_for_the_next_request() -> None:
    gated = Gated(ApiKey.DESCRIBE_ACLS, super_users="User:root;User:other")
    gated.grant((AclOperation.DESCRIBE, "kafka-cluster"), of=AclResource.CLUSTER)
    assert (await gated.ask(3)).error_code == ErrorCode.none
    set_acls(gated.view, frozenset())
    assert (await gated.ask(3)).error_code == ErrorCode.cluster_authorization_failed
    gated.connection.principal = "User:root"
    assert (await gated.ask(3)).error_code == ErrorCode.none
    gated.connection.principal = None
    assert (await gated.ask(3)).error_code == ErrorCode.cluster_authorization_failed
    assert gated.denials[-1].principal == "User:ANONYMOUS"


def test_other_records_leave_the_set_of_acls_as_it_is() -> None:
    """The index and all decisions are kept as long as it is the same object."""
    before = apply(Gated(ApiKey.METADATA).view.image, [encode_record(a_grant(AclOperation.READ, "t"))])
    after = apply(before, [encode_record(UserScramKeysRecord(user_name="alice", keys=()))])
    assert after.offset == before.offset + 1
    assert after.access_controls is before.access_controls


def test_a_denial_is_logged_once_a_minute_and_always_counted(caplog: pytest.LogCaptureFixture) -> None:
    """In the audit log, and in the agents' log the line that ACLS.md names."""
    clock, registry = ManualClock(), CollectorRegistry()
    settings = Settings(authorizer_class_name=STANDARD_AUTHORIZER)
    lines: list[str] = []
    audit = AuditLog(clock, registry, lines.append)
    authorizer = reporting_authorizer(settings, StandingView(4, node_id=1, broker_epoch=1), clock, registry, audit)
    request = Request(ClientConnection(1, "::1:5", "User:bob"), ApiKey.FETCH, 12, 1, "c", memoryview(b""), 0.0)
    for _ in range(5):
        assert not authorizer.require(request, AclOperation.READ, AclResource.TOPIC, "t")
    assert len(lines) == 1
    clock.jump(SECONDS)
    authorizer.denied(request, AclOperation.READ, AclResource.TOPIC, "t")
    first, second = map(json.loads, lines)
    answer = {"event": "denied", "principal": "User:bob", "host": "::1", "resource": "TOPIC:t", "api": "Fetch"}
    assert answer.items() <= first.items()
    assert "count" not in first
    assert second["count"] == 5
    line = "denied: principal=User:bob operation=READ resource=TOPIC:t api=Fetch client_id='c' count="
    assert [each for each in caplog.messages if each.startswith("denied:")] == [f"{line}1", f"{line}5"]
    labels = {"api": "Fetch", "operation": "READ"}
    assert registry.get_sample_value("headrace_authorization_denied_total", labels) == 6


async def test_a_pattern_matches_only_topics_that_its_member_may_describe() -> None:
    gated = Gated(ApiKey.METADATA)
    topics = {name: TopicImage(uuid.UUID(int=n), n, name, 1, 1, (0,)) for n, name in enumerate(("a1", "a2"), 1)}
    gated.view.head = replace(gated.view.head, topics_by_name=MappingProxyType(topics))
    gated.grant((AclOperation.READ, "a1"))
    known = GroupTopics(gated.view, gated.authorizer)
    alice, bob = (pattern_of("a.*", principal, "/10.0.0.1") for principal in ("User:alice", "User:bob"))
    await known.prepare([alice, bob])
    assert (known.topics().of((), alice), known.topics().of((), bob)) == ({1}, set())
    gated.grant((AclOperation.READ, "a1"), (AclOperation.DESCRIBE, "a2"))
    assert known.topics([alice]).of((), alice) == {1, 2}
    assert GroupTopics(gated.view, authorizer=None).topics(["a.*"]).of((), "a.*") == {1, 2}, "if ACLs are not enforced"


@pytest.mark.parametrize("text", ["org.example.MyAuthorizer", "StandardAuthorizer"])
def test_another_authorizer_is_refused(text: str) -> None:
    with pytest.raises(Exception, match=r"authorizer\.class\.name"):
        load(flags={"authorizer.class.name": text})
    found = load(flags={"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:a;User:CN=b,O=c"})
    assert found.super_users == "User:a;User:CN=b,O=c"
    with pytest.raises(Exception, match=r"super\.users"):
        load(flags={"super.users": "alice"})
