"""ACLs that are enforced, over sockets: every API, a revoked ACL on two agents, forwarded requests, a real client."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import psycopg
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.admin import ResourceType as AdminResource

from headrace.agent.access.authorization.operations import AclOperation as Operation
from headrace.agent.access.authorization.operations import AclResource as ResourceType
from headrace.config.free_ports import free_ports
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.storage.errors import InvalidError
from tests.acl_matrix.__main__ import COLUMNS, Answered, Client, grant, leaves, outcome, prepare, users
from tests.acl_matrix.case import GROUP, TOPIC, Case, Need
from tests.acl_matrix.cases import WITHOUT_GRANTS, cases
from tests.acl_matrix.servers import AUTHORIZATION, MECHANISM, PASSWORD, SUPER
from tests.agent_process import SECONDS_MAX, AgentUnderTest
from tests.confluent_records import read
from tests.waiting import until

Address = tuple[str, int]
SECOND_CODES = {
    "OffsetFetch-all": frozenset[str](),
    "DescribeShareGroupOffsets-all": frozenset[str](),
    "AddOffsetsToTxn": frozenset({"group_authorization_failed"}),
}
"""Error codes without the last grant only; other rows with two grants fail for the topic."""
RECORD = b"value"
"""What the rows write."""


@dataclass
class Cluster:
    """Two agents behind one address, so that a group is served by either. `topic_id`: of TOPIC."""

    agents: list[AgentUnderTest]
    topic_id: uuid.UUID
    metastore_url: str

    @property
    def addresses(self) -> list[Address]:
        return [_address(agent.kafka) for agent in self.agents]

    @property
    def rows(self) -> list[Case]:
        return cases(self.topic_id)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _client(at: Address, user: str) -> Client:
    """Once the agent knows the user."""
    end = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return Client(at, user)
        except InvalidError:
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.fixture
def cluster(agent_settings: dict[str, object]) -> Iterator[Cluster]:
    """Yield the cluster with a super user, and with all that the rows need. Records stay in the metastore."""
    common = agent_settings | AUTHORIZATION | {"log.level": "error", "inter.broker.listener.name": "AGENTS"}
    common |= {"super.users": f"User:{SUPER};User:ANONYMOUS", "advertised.shared": True}
    common |= {"low.latency.enable": True, "low.latency.move.ms": 600_000}
    common["listener.security.protocol.map"] = "CLIENT:SASL_PLAINTEXT,AGENTS:PLAINTEXT"
    ports = free_ports(4)
    with ExitStack() as stack:
        agents = []
        for client, link in (ports[:2], ports[2:]):
            listeners = f"CLIENT://127.0.0.1:{client},AGENTS://127.0.0.1:{link}"
            agents.append(stack.enter_context(AgentUnderTest(common | {"listeners": listeners})))
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{ports[1]}"})
        password = UserScramCredentialUpsertion(
            SUPER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), PASSWORD.encode()
        )
        for made in admin.alter_user_scram_credentials([password]).values():
            made.result(SECONDS_MAX)
        _client(_address(agents[0].kafka), SUPER).close()
        yield Cluster(agents, prepare(_address(agents[0].kafka)), str(agent_settings["metastore.url"]))


@pytest.mark.slow
@pytest.mark.requirement("C13.2", "X2", "X13")
def test_acls_over_sockets(cluster: Cluster) -> None:
    """One cluster for all, as agents take seconds to start."""
    _versions_refuse_a_client_without_grants(cluster)
    _every_api_for_every_kind_of_grant(cluster)
    _a_forwarded_request_has_the_rights_of_its_client(cluster)
    _librdkafka_with_the_least_grants(cluster)
    _inline_records_are_shown_to_their_readers_only(cluster)
    _low_latency_needs_what_other_configs_need(cluster)
    _a_revoked_acl_acts_on_all_agents_and_on_open_connections(cluster)


@pytest.mark.slow
@pytest.mark.requirement("C13.2", "X2")
def test_every_version_refuses_a_client_without_grants(cluster: Cluster) -> None:
    _refused_without_grants(cluster, iter)


def _every_api_for_every_kind_of_grant(cluster: Cluster) -> None:
    served = {key for key in APIS if key not in WITHOUT_GRANTS}
    assert {case.api_key for case in cluster.rows} == served, "a row for each API"
    wrong = []
    for case in cluster.rows:
        said = {column: outcome(cluster.addresses[0], case, column) for column in COLUMNS}
        wrong += [f"{case.label} {column}: {said[column]}" for column in COLUMNS if not _fits(case, column, said)]
    assert not wrong, "\n".join(wrong)


def _inline_records_are_shown_to_their_readers_only(cluster: Cluster) -> None:
    """While a record is in the metastore, no API shows it to a client that may do all that the API needs, but not read
    the topic.
    """
    by_label = {case.label: case for case in cluster.rows}
    produced = Client(cluster.addresses[0], SUPER)
    until(lambda: _is_inline(cluster, produced, by_label["Produce"]))
    shown = {
        (case.label, column)
        for case in cluster.rows
        for column in ("none", "deny", "allow")
        if any(RECORD in bytes(each) for each in _answer(cluster, case, column))
    }
    readers = {
        (case.label, "allow") for case in cluster.rows if Need(Operation.READ, ResourceType.TOPIC, TOPIC) in case.needs
    }
    assert ("Fetch", "allow") in shown
    assert shown <= readers, shown - readers
    assert _count(cluster, "SELECT count(*) FROM extents WHERE is_inline(file_id)"), "they were not moved meanwhile"


def _is_inline(cluster: Cluster, client: Client, row: Case) -> bool:
    """Write a record, once more; whether the metastore has its bytes."""
    assert not _codes(client, row)
    return _count(cluster, "SELECT count(*) FROM inline_files") > 0


def _count(cluster: Cluster, query: str) -> int:
    with psycopg.connect(cluster.metastore_url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def _answer(cluster: Cluster, case: Case, column: str) -> list[bytes | memoryview]:
    """Return all bytes in the answer, in the newest version."""
    client = Client(cluster.addresses[0], f"{case.label}.{column}")
    try:
        if case.opening is not None:
            api_key, values = case.opening
            client.ask(api_key, client.newest(api_key), values)
        answer = client.ask(case.api_key, min(client.newest(case.api_key), case.version_max), case.values)
        return [value for _, value in leaves(answer) if isinstance(value, bytes | memoryview)]
    except OSError:
        return []
    finally:
        client.close()


def _low_latency_needs_what_other_configs_need(cluster: Cluster) -> None:
    """AlterConfigs on the topic, or on the cluster for all topics."""
    for label, kind, resource, name in (
        ("topic", 2, TOPIC, "low.latency.enable"),
        ("broker", 4, "", "low.latency.enable"),
        ("broker", 4, "", "low.latency.file.max.bytes"),
    ):
        row = next(case for case in cluster.rows if case.label == f"IncrementalAlterConfigs-{label}")
        value = "false" if name.endswith("enable") else "0"
        config = {"name": name, "config_operation": 0, "value": value}
        asked = {"resources": [{"resource_type": kind, "resource_name": resource, "configs": [config]}]}
        changed = row._replace(values=asked | {"validate_only": True})
        for column, codes in (("none", row.codes), ("deny", row.codes), ("allow", frozenset[str]())):
            found = outcome(cluster.addresses[0], changed, column)
            assert found is not None
            assert found.codes == codes, (label, name, column)


def _fits(case: Case, column: str, said: dict[str, Answered | None]) -> bool:
    found, none = said[column], said["none"]
    assert found is not None
    assert none is not None
    if column in ("none", "deny") or (column == "all-but-last" and len(case.needs) < 2):
        return found.codes == case.codes and found.listed <= 0
    if column == "all-but-last":
        expected = SECOND_CODES.get(case.label, frozenset({"topic_authorization_failed"}))
        return found.codes == expected and found.listed <= 0
    is_listed = found.listed > 0 if case.counted else True
    return not found.codes and is_listed


def _versions_refuse_a_client_without_grants(cluster: Cluster) -> None:
    """The oldest and the newest of each API; test_every_version_refuses_a_client_without_grants has all."""
    _refused_without_grants(cluster, lambda versions: {versions[0], versions[-1]})


def _refused_without_grants(cluster: Cluster, chosen: Callable[[range], Iterable[int]]) -> None:
    wrong = []
    for case in cluster.rows:
        api = APIS[case.api_key]
        versions = range(max(api.min_version, case.version_min), min(api.max_version, case.version_max) + 1)
        for version in chosen(versions):
            found = outcome(cluster.addresses[0], case, "none", version)
            if found is None or found.codes != case.codes or found.listed > 0:
                wrong.append(f"{case.label} version={version}: {found}")
    assert not wrong, "\n".join(wrong)


def _codes(client: Client, case: Case) -> frozenset[str]:
    found = client.said(case)
    assert found is not None
    return found.codes


def _a_revoked_acl_acts_on_all_agents_and_on_open_connections(cluster: Cluster) -> None:
    row = next(case for case in cluster.rows if case.label == "Fetch")
    admin, clients = Client(cluster.addresses[0], SUPER), [_client(at, "Fetch.allow") for at in cluster.addresses]
    until(lambda: all(not _codes(client, row) for client in clients))
    every = {"resource_type_filter": 2, "pattern_type_filter": 3, "operation": 1, "permission_type": 1}
    gone = admin.ask(ApiKey.DELETE_ACLS, 3, {"filters": [every | {"principal_filter": "User:Fetch.allow"}]})
    assert len(gone.filter_results[0].matching_acls) == 1
    until(lambda: all(_codes(client, row) == {"topic_authorization_failed"} for client in clients))


def _a_forwarded_request_has_the_rights_of_its_client(cluster: Cluster) -> None:
    """Of eight groups, some are served by the other agent."""
    admin = Client(cluster.addresses[0], SUPER)
    users(admin, ["member", "stranger"])
    groups = [f"{GROUP}-{number}" for number in range(8)]
    grant(admin, "member", [Need(Operation.READ, ResourceType.GROUP, group) for group in groups])
    for at in cluster.addresses:
        member, stranger = (_client(at, user) for user in ("member", "stranger"))
        for group in groups:
            asked = {"group_id": group, "generation_id": 1, "member_id": "m"}
            until(lambda client=member, asked=asked: _heartbeat(client, asked) == "unknown_member_id")  # type: ignore[misc]
            assert _heartbeat(stranger, asked) == "group_authorization_failed"


def _heartbeat(client: Client, asked: dict[str, Any]) -> str:
    name: str = client.ask(ApiKey.HEARTBEAT, 4, asked).error_code.name
    return name


def _librdkafka_with_the_least_grants(cluster: Cluster) -> None:
    def config(user: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": cluster.agents[0].kafka,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": PASSWORD,
        }

    users(Client(cluster.addresses[0], SUPER), ["writer", "reader"])
    grants = (
        ("writer", AdminResource.TOPIC, TOPIC, AclOperation.WRITE),
        ("reader", AdminResource.TOPIC, TOPIC, AclOperation.READ),
        ("reader", AdminResource.GROUP, "readers", AclOperation.READ),
    )
    admin = AdminClient(config(SUPER))
    bindings = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for user, kind, name, operation in grants
    ]
    for made in admin.create_acls(bindings).values():
        made.result(SECONDS_MAX)
    assert _written(config("writer") | {"enable.idempotence": True}) == 0
    assert _written(config("reader")) == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    group = {"group.id": "readers", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(config("reader") | group)
    consumer.subscribe(["^acl-.*"])
    values = {message.value() for message in read(consumer, 1, SECONDS_MAX)}
    assert values <= {b"value", b"from librdkafka"}
    assert {each.topic for each in consumer.assignment()} == {TOPIC}, "it sees no other topic"
    consumer.close()
    stranger = confluent_kafka.Consumer(config("writer") | group)
    stranger.subscribe([TOPIC])
    refused = stranger.poll(SECONDS_MAX)
    assert refused is not None
    assert refused.error().code() == confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED
    stranger.close()


def _written(config: dict[str, Any]) -> int:
    """The code with which a value was written or refused."""
    codes: list[int] = []
    producer = confluent_kafka.Producer(config)
    producer.produce(TOPIC, b"from librdkafka", on_delivery=lambda error, _: codes.append(error.code() if error else 0))
    producer.flush(SECONDS_MAX)
    return codes[0]
