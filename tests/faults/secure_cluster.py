"""Agents with TLS for clients and between agents, and SASL: started and stopped, and the settings of their clients.

Each agent has three listeners: CLIENT (SASL_SSL), AGENTS (SSL, certificates of clients are required), and ADMIN
(PLAINTEXT). Certificates are those of one authority; tokens of OAUTHBEARER are signed by one key.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.config.free_ports import free_ports
from tests.agent.access.certificates import Authority
from tests.agent_process import SECONDS_MAX, AgentUnderTest
from tests.kafka_clients import KafkaClients
from tests.waiting import until

PASSWORD = "correct horse"
MECHANISMS = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
JAVA_LOGINS = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}
_MAP = "CLIENT:SASL_SSL,AGENTS:SSL,ADMIN:PLAINTEXT"


@dataclass
class SecureCluster:
    """`clients`, `links`, `admins`: the agents' listeners, as addresses. `key` signs tokens."""

    authority: Authority
    key: ec.EllipticCurvePrivateKey
    agents: list[AgentUnderTest] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    admins: list[str] = field(default_factory=list)
    keystores: list[Path] = field(default_factory=list)

    @property
    def client(self) -> str:
        """The first agent's."""
        return self.clients[0]

    @property
    def admin(self) -> str:
        """The first agent's."""
        return self.admins[0]

    @property
    def link(self) -> str:
        """The first agent's."""
        return self.links[0]

    def settings(self, mechanism: str, user: str = "orders", password: str = PASSWORD) -> dict[str, Any]:
        """Return the settings of librdkafka."""
        found: dict[str, Any] = {
            "bootstrap.servers": self.client,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.path),
            "sasl.mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            return found | {"oauth_cb": lambda _: self.token(user)}
        return found | {"sasl.username": user, "sasl.password": password}

    def settings_of_certificate(self, name: str = "orders") -> dict[str, Any]:
        """Return settings of librdkafka with a certificate of this common name, for the listener
        that asks for one.
        """
        keystore = str(self.authority.issue(name))
        return {
            "bootstrap.servers": self.link,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.path),
            "ssl.certificate.location": keystore,
            "ssl.key.location": keystore,
        }

    def token(self, user: str, seconds: int = 3600, audience: str = "headrace") -> tuple[str, float]:
        """A signed token, and when it ends."""
        ends = time.time() + seconds
        claims = {"sub": user, "exp": int(ends), "aud": audience, "iss": "tests"}
        return jwt.encode(claims, self.key, algorithm="ES256", headers={"kid": "one"}), ends

    def user(self, name: str, password: str = PASSWORD) -> None:
        """Create it, or change its password, for both mechanisms."""
        admin = AdminClient({"bootstrap.servers": self.admin})
        changes: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), password.encode())
            for mechanism in MECHANISMS
        ]
        for changed in admin.alter_user_scram_credentials(changes).values():
            changed.result(SECONDS_MAX)

    def topic(self, name: str, partitions: int) -> None:
        """Created, and known to every agent."""
        KafkaClients(self.admin).create(name, partitions)
        for address in self.admins:
            one = AdminClient({"bootstrap.servers": address})
            until(lambda one=one: name in one.list_topics(timeout=SECONDS_MAX).topics)  # type: ignore[misc]

    def logins(self, mechanism: str, *, result: str = "succeeded") -> float:
        """Return how many all agents have seen on the listener for clients, those of open connections included.
        `result`: succeeded or failed.
        """
        labels = {"listener": "CLIENT", "mechanism": mechanism, "result": result}
        return sum(agent.metric("headrace_authentications_total", **labels) for agent in self.agents)


def _jwks(directory: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    path = directory / "keys.json"
    path.write_text(json.dumps({"keys": [public | {"kid": "one", "use": "sig", "alg": "ES256"}]}))
    return path


@contextmanager
def secure_cluster(
    directory: Path,
    settings: Mapping[str, object],
    count: int,
    more: Mapping[str, object] | None = None,
    authority: Authority | None = None,
) -> Iterator[SecureCluster]:
    """Yield the secure cluster with the user "orders". `more`: settings above those of every secure cluster.
    `authority` None: a new one.
    """
    cluster = SecureCluster(authority or Authority(directory), ec.generate_private_key(ec.SECP256R1()))
    own_variables = {
        "HEADRACE_LISTENER_NAME_AGENTS_SSL_CLIENT_AUTH": "required",
        "HEADRACE_LISTENER_NAME_CLIENT_CONNECTION_FAILED_AUTHENTICATION_DELAY_MS": "1",
        "HEADRACE_LISTENER_NAME_CLIENT_SASL_OAUTHBEARER_EXPECTED_AUDIENCE": "headrace",
        "HEADRACE_LISTENER_NAME_CLIENT_SASL_OAUTHBEARER_EXPECTED_ISSUER": "tests",
    }
    secured = dict(settings) | {
        "listener.security.protocol.map": _MAP,
        "inter.broker.listener.name": "AGENTS",
        "ssl.truststore.location": str(cluster.authority.path),
        "delegation.token.secret.key": "a secret for tokens",
        "connections.max.reauth.ms": 2_000,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{_jwks(directory, cluster.key)}",
    }  # fmt: skip
    for _ in range(count):
        client, admin, link = (f"127.0.0.1:{port}" for port in free_ports(3))
        cluster.clients.append(client)
        cluster.admins.append(admin)
        cluster.links.append(link)
        cluster.keystores.append(cluster.authority.issue("agent"))
        own = {
            "listeners": f"CLIENT://{client},ADMIN://{admin},AGENTS://{link}",
            "ssl.keystore.location": str(cluster.keystores[-1]),
        }
        cluster.agents.append(AgentUnderTest({**secured, **own, **(more or {})}))
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in own_variables.items():
            patch.setenv(name, value)  # forked agents have this process's environment
        list(pool.map(stack.enter_context, cluster.agents))
        cluster.user("orders")
        yield cluster


def java_settings(cluster: SecureCluster, directory: Path, mechanism: str, user: str = "orders") -> Path:
    """A properties file of Kafka's own client. Mechanism "SSL": a certificate with the user's name."""
    lines = {
        "bootstrap.servers": cluster.client,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(cluster.authority.path),
        "sasl.mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        token = directory / "token"
        token.write_text(cluster.token(user)[0])
        module = "org.apache.kafka.common.security.oauthbearer."
        lines["sasl.oauthbearer.token.endpoint.url"] = token.as_uri()
        lines["sasl.jaas.config"] = f"{module}OAuthBearerLoginModule required;"
        lines["sasl.login.callback.handler.class"] = f"{module}OAuthBearerLoginCallbackHandler"
    elif mechanism == "SSL":
        del lines["sasl.mechanism"]
        lines["bootstrap.servers"] = cluster.link
        lines["security.protocol"] = "SSL"
        lines["ssl.keystore.type"] = "PEM"
        lines["ssl.keystore.location"] = str(cluster.authority.issue(user))
    else:
        module = f"org.apache.kafka.common.security.{JAVA_LOGINS[mechanism]}"
        lines["sasl.jaas.config"] = f'{module} required username="{user}" password="{PASSWORD}";'
    path = directory / f"{mechanism}-{user}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path
