"""Users with passwords: which SCRAM credentials they have, and new ones.

Place: under `headrace users` and `headrace cluster apply`.
Invariant: the password stays on this machine: only its salted hash is sent, as Kafka's own tools do. No cluster gives a
password back, so none is ever read.
Source: KIP-554; RFC 5802.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, require
from headrace.protocol.client.login import DIGESTS

MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Kafka's numbers."""
ITERATIONS_DEFAULT = 4096
ITERATIONS = (4096, 16384)
"""Kafka's bounds."""
SALT_BYTES = 32


class Credential(NamedTuple):
    """What a cluster shows of one credential of a user."""

    user: str
    mechanism: str
    iterations: int


def list_users(cluster: KafkaCluster, names: Sequence[str] | None = None) -> list[Credential]:
    """Return the credentials of these users (None: of all), sorted. InvalidError names a user without any."""
    m = cluster.message(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS)
    users = None if names is None else tuple(m.make("UserName", name=name) for name in dict.fromkeys(names))
    cluster.nodes()
    answer = cluster.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, m.request(users=users), cluster.controller)
    require(answer.error_code, answer.error_message)
    found = []
    for result in answer.results:
        if result.error_code is ErrorCode.resource_not_found and names is not None:
            require(result.error_code, "the user has no SCRAM credentials", result.user)
        require(result.error_code, result.error_message, result.user)
        for each in result.credential_infos:
            mechanism = next((word for word, n in MECHANISMS.items() if n == each.mechanism), str(each.mechanism))
            found.append(Credential(str(result.user), mechanism, int(each.iterations)))
    return sorted(found)


def set_password(
    cluster: KafkaCluster, credential: Credential, password: str, token_bytes: Callable[[int], bytes]
) -> None:
    """Create or replace the credential. `token_bytes` gives the salt. Errors as `require`."""
    salt = token_bytes(SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(DIGESTS[credential.mechanism], password.encode(), salt, credential.iterations)
    m = cluster.message(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    upsertion = m.make(
        "ScramCredentialUpsertion",
        name=credential.user,
        mechanism=MECHANISMS[credential.mechanism],
        iterations=credential.iterations,
        salt=salt,
        salted_password=salted,
    )
    _alter(cluster, m.request(deletions=(), upsertions=(upsertion,)), credential.user)


def delete_credential(cluster: KafkaCluster, user: str, mechanism: str) -> None:
    """Delete the credential. Errors as `require`, also if the user has none of this mechanism."""
    m = cluster.message(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    deletion = m.make("ScramCredentialDeletion", name=user, mechanism=MECHANISMS[mechanism])
    _alter(cluster, m.request(deletions=(deletion,), upsertions=()), user)


def _alter(cluster: KafkaCluster, request: Any, user: str) -> None:
    cluster.nodes()
    (result,) = cluster.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request, cluster.controller).results
    require(result.error_code, result.error_message, user)
