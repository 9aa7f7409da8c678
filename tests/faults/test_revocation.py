"""Three agents: a revoked ACL and a removed credential act on each, on open connections and on new ones.

The times from sending the change until an agent acts are printed. The test itself waits for the condition.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    UserScramCredentialDeletion,
)

from headrace.config.settings import STANDARD_AUTHORIZER
from headrace.storage.errors import InvalidError
from tests.acl_matrix.__main__ import Client
from tests.acl_matrix.case import TOPIC
from tests.acl_matrix.data_cases import data_cases
from tests.agent_process import SECONDS_MAX
from tests.faults.secure_cluster import MECHANISMS, PASSWORD, SecureCluster, secure_cluster

AGENTS = 3
ROUNDS = 5
FETCH = next(case for case in data_cases(uuid.UUID(int=0)) if case.label == "Fetch")
NAMED_VERSION = 12
"""The last version of Fetch that names topics."""
_READ = AclBinding(
    ResourceType.TOPIC,
    TOPIC,
    ResourcePatternType.LITERAL,
    "User:orders",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)


@pytest.fixture
def cluster(tmp_path: Path, agent_settings: dict[str, object]) -> Iterator[SecureCluster]:
    more = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        "connections.max.reauth.ms": 0,
        "compaction.interval.ms": 60_000,
    }
    with secure_cluster(tmp_path, agent_settings, AGENTS, more) as running:
        yield running


@pytest.mark.slow
@pytest.mark.requirement("C13.2", "X2")
def test_a_revoked_acl_and_a_removed_credential_act_on_all_agents(cluster: SecureCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.admin})
    cluster.topic(TOPIC, 1)
    clients = [_client(cluster, address, "orders") for address in cluster.clients]
    acls = [seconds for _ in range(ROUNDS) for seconds in _revoke(admin, clients)]
    removals = [_remove(cluster, admin, f"leaver-{number}") for number in range(ROUNDS)]
    opened = [seconds for pair in removals for seconds in pair[0]]
    logins = [seconds for pair in removals for seconds in pair[1]]
    for what, times in (("ACL revoked", acls), ("open connection ended", opened), ("login refused", logins)):
        assert len(times) == AGENTS * ROUNDS
        print(f"\n{what}: {len(times)} times, median {sorted(times)[len(times) // 2]:.3f}s, max {max(times):.3f}s")


def _revoke(admin: AdminClient, clients: Sequence[Client]) -> list[float]:
    """Seconds until each agent denies a fetch on a connection that was allowed to."""
    (created,) = admin.create_acls([_READ]).values()
    created.result(SECONDS_MAX)
    _each([lambda client=client: _may_fetch(client) for client in clients])  # type: ignore[misc]
    ours = AclBindingFilter(
        ResourceType.TOPIC,
        TOPIC,
        ResourcePatternType.LITERAL,
        "User:orders",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    sent = time.monotonic()
    (deleted,) = admin.delete_acls([ours]).values()
    times = _each([lambda client=client: not _may_fetch(client) for client in clients])  # type: ignore[misc]
    assert deleted.result(SECONDS_MAX) == [_READ]
    return [at - sent for at in times]


def _remove(cluster: SecureCluster, admin: AdminClient, user: str) -> tuple[list[float], list[float]]:
    """Seconds until each agent ends an open connection of the user, and until each refuses a login."""
    cluster.user(user)
    clients = [_client(cluster, address, user) for address in cluster.clients]
    sent = time.monotonic()
    gone = admin.alter_user_scram_credentials(
        [UserScramCredentialDeletion(user, mechanism) for mechanism in MECHANISMS]
    )
    ended = [lambda client=client: _has_ended(client) for client in clients]
    refused = [lambda at=address: _is_refused(cluster, at, user) for address in cluster.clients]
    times = [at - sent for at in _each([*ended, *refused])]
    for removed in gone.values():
        removed.result(SECONDS_MAX)
    return times[:AGENTS], times[AGENTS:]


def _each(conditions: Sequence[Callable[[], bool]]) -> list[float]:
    """Return when each condition was first seen to hold."""
    seen: dict[int, float] = {}
    until = time.monotonic() + SECONDS_MAX
    while len(seen) < len(conditions):
        for number, holds in enumerate(conditions):
            if number not in seen and holds():
                seen[number] = time.monotonic()
        assert time.monotonic() < until, f"{len(seen)} of {len(conditions)}"
        time.sleep(0.005)
    return [seen[number] for number in range(len(conditions))]


def _may_fetch(client: Client) -> bool:
    answered = client.said(FETCH, NAMED_VERSION)
    assert answered is not None
    assert answered.codes <= {"topic_authorization_failed"}
    return not answered.codes


def _has_ended(client: Client) -> bool:
    try:
        client.said(FETCH, NAMED_VERSION)
    except OSError:
        return True
    return False


def _connect(cluster: SecureCluster, address: str, user: str) -> Client:
    host, _, port = address.rpartition(":")
    return Client((host, int(port)), user, PASSWORD, str(cluster.authority.path))


def _is_refused(cluster: SecureCluster, address: str, user: str) -> bool:
    try:
        _connect(cluster, address, user).close()
    except InvalidError:
        return True
    return False


def _client(cluster: SecureCluster, address: str, user: str) -> Client:
    """Once the agent knows the user."""
    until = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return _connect(cluster, address, user)
        except InvalidError:
            assert time.monotonic() < until
            time.sleep(0.02)
