"""Two agents with TLS between them and for clients, and SASL: what librdkafka does there, and who is kept out."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import jwt
import pytest
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.cli.main import main
from load.tools import JAVA_LIBRARIES, KAFKA_JARS, why_missing
from tests import compat
from tests.agent.security.certificates import Authority
from tests.agent_process import SECONDS_MAX, AgentUnderTest
from tests.confluent_records import read
from tests.faults.shared_cluster import free_ports

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(300)]
RECORDS = 50
PASSWORD = "correct horse"
MAP = "CLIENT:SASL_SSL,AGENTS:SSL,ADMIN:PLAINTEXT"


@dataclass
class SecureCluster:
    """`client` and `admin` are the addresses of the first agent; `key` signs tokens."""

    agents: list[AgentUnderTest]
    client: str
    admin: str
    link: str
    authority: Authority
    key: ec.EllipticCurvePrivateKey

    def settings(self, mechanism: str, user: str = "orders", password: str = PASSWORD) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap.servers": self.client,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.path),
            "sasl.mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            return found | {"oauth_cb": lambda _: self.token(user)}
        return found | {"sasl.username": user, "sasl.password": password}

    def token(self, user: str, seconds: int = 3600, audience: str = "headrace") -> tuple[str, float]:
        """A signed token, and when it ends."""
        ends = time.time() + seconds
        claims = {"sub": user, "exp": int(ends), "aud": audience, "iss": "tests"}
        return jwt.encode(claims, self.key, algorithm="ES256", headers={"kid": "one"}), ends

    def user(self, name: str, password: str = PASSWORD) -> None:
        """Create it, or change its password, for both mechanisms."""
        admin = AdminClient({"bootstrap.servers": self.admin})
        changes = [
            UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), password.encode())
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for changed in admin.alter_user_scram_credentials(changes).values():
            changed.result(SECONDS_MAX)


def _jwks(directory: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    path = directory / "keys.json"
    path.write_text(json.dumps({"keys": [public | {"kid": "one", "use": "sig", "alg": "ES256"}]}))
    return path


@pytest.fixture
def cluster(tmp_path: Path, agent_settings: dict[str, object]) -> Iterator[SecureCluster]:
    directory = tmp_path
    authority, key = Authority(directory), ec.generate_private_key(ec.SECP256R1())
    environment = os.environ | {
        "HEADRACE_LISTENER_NAME_AGENTS_SSL_CLIENT_AUTH": "required",
        "HEADRACE_LISTENER_NAME_CLIENT_CONNECTION_FAILED_AUTHENTICATION_DELAY_MS": "1",
        "HEADRACE_LISTENER_NAME_CLIENT_SASL_OAUTHBEARER_EXPECTED_AUDIENCE": "headrace",
        "HEADRACE_LISTENER_NAME_CLIENT_SASL_OAUTHBEARER_EXPECTED_ISSUER": "tests",
    }
    agents, addresses = [], []
    for _ in range(2):
        client, admin, link = (f"127.0.0.1:{port}" for port in free_ports(3))
        settings = agent_settings | {
            "listeners": f"CLIENT://{client},ADMIN://{admin},AGENTS://{link}",
            "listener.security.protocol.map": MAP,
            "inter.broker.listener.name": "AGENTS",
            "ssl.keystore.location": str(authority.issue("agent")),
            "ssl.truststore.location": str(authority.path),
            "delegation.token.secret.key": "a secret for tokens",
            "connections.max.reauth.ms": 2_000,
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": f"file://{_jwks(directory, key)}",
        }
        agents.append(AgentUnderTest(settings, environment).__enter__())
        addresses.append((client, admin, link))
    found = SecureCluster(agents, *addresses[0], authority, key)
    found.user("orders")
    try:
        yield found
    finally:
        for agent in agents:
            agent.__exit__(None, None, None)


@pytest.mark.requirement("C13.2", "X2")
def test_librdkafka_writes_and_reads_in_a_group_by_each_mechanism(cluster: SecureCluster) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"):
        _write_and_read(cluster, mechanism)


def _write_and_read(cluster: SecureCluster, mechanism: str) -> None:
    topic = f"by-{mechanism}"
    admin = AdminClient(cluster.settings(mechanism))
    admin.poll(0)
    for created in admin.create_topics([NewTopic(topic, 4)]).values():
        created.result(SECONDS_MAX)
    producer = confluent_kafka.Producer(cluster.settings(mechanism) | {"enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(topic, str(number), partition=number % 4)
    assert producer.flush(SECONDS_MAX) == 0
    group = {"group.id": topic, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(cluster.settings(mechanism) | group)
    consumer.subscribe([topic])
    values = sorted(int(message.value()) for message in read(consumer, RECORDS, SECONDS_MAX))
    assert values == list(range(RECORDS))
    consumer.close()


JAVA_LOGINS = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}


def _java_settings(cluster: SecureCluster, directory: Path, mechanism: str) -> Path:
    """A properties file of Kafka's own client."""
    lines = {
        "bootstrap.servers": cluster.client,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(cluster.authority.path),
        "sasl.mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        token = directory / "token"
        token.write_text(cluster.token("orders")[0])
        module = "org.apache.kafka.common.security.oauthbearer."
        lines["sasl.oauthbearer.token.endpoint.url"] = token.as_uri()
        lines["sasl.jaas.config"] = f"{module}OAuthBearerLoginModule required;"
        lines["sasl.login.callback.handler.class"] = f"{module}OAuthBearerLoginCallbackHandler"
    elif mechanism == "SSL":
        del lines["sasl.mechanism"]
        lines["bootstrap.servers"] = cluster.link
        lines["security.protocol"] = "SSL"
        lines["ssl.keystore.type"] = "PEM"
        lines["ssl.keystore.location"] = str(cluster.authority.issue("orders"))
    else:
        module = f"org.apache.kafka.common.security.{JAVA_LOGINS[mechanism]}"
        lines["sasl.jaas.config"] = f'{module} required username="orders" password="{PASSWORD}";'
    path = directory / f"{mechanism}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


@pytest.mark.requirement("C13.2", "X2")
def test_kafkas_own_client_by_each_mechanism_with_certificates_and_tokens(
    cluster: SecureCluster, tmp_path: Path
) -> None:
    """One process for all, as a JVM takes seconds to start. Its connections authenticate again every 2 s."""
    if reason := why_missing("kafka-clients") or why_missing("kafka"):
        pytest.skip(reason)
    files = {name: _java_settings(cluster, tmp_path, name) for name in (*JAVA_LOGINS, "OAUTHBEARER", "SSL")}
    files["token"] = files["again"] = files["SCRAM-SHA-512"]
    its_own = [*KAFKA_JARS.glob("jackson-*.jar"), *KAFKA_JARS.glob("jose4j-*.jar")]  # by which it reads tokens
    libraries = ":".join(map(str, [JAVA_LIBRARIES / "*", *its_own]))
    source = Path(compat.__file__).with_name("SecureClient.java")
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={(tmp_path / 'token').as_uri()}"
    command = ["java", "-XX:TieredStopAtLevel=1", allowed, "-cp", libraries, str(source)]
    arguments = [f"{name}={path}" for name, path in files.items()]
    before = _succeeded(cluster, "SCRAM-SHA-512")
    run = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=200, check=False)
    told = [line for line in run.stdout.splitlines() if line.startswith("read ")]
    assert told == [f"read {name} true" for name in files], run.stdout + run.stderr[-4000:]
    assert _succeeded(cluster, "SCRAM-SHA-512") - before > 8, "six connections, and those that authenticated again"


def _succeeded(cluster: SecureCluster, mechanism: str) -> float:
    labels = f'headrace_authentications_total{{listener="CLIENT",mechanism="{mechanism}",result="succeeded"}}'
    total = 0.0
    for agent in cluster.agents:
        with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=SECONDS_MAX) as response:
            lines = response.read().decode().splitlines()
        total += sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(labels))
    return total


def _refusal(settings: dict[str, Any]) -> str:
    """What librdkafka says of the connection."""
    errors: list[confluent_kafka.KafkaError] = []
    client = AdminClient(settings | {"error_cb": errors.append})
    until = time.monotonic() + SECONDS_MAX
    while not errors and time.monotonic() < until:
        client.poll(0.1)
    return str(errors[0]) if errors else "no error"


def _tool(cluster: SecureCluster, path: Path, password: str, mechanism: str) -> int:
    """The exit status of `headrace topics list`."""
    path.write_text(
        f"bootstrap.servers=localhost:{cluster.client.rpartition(':')[2]}\n"
        f"security.protocol=SASL_SSL\nssl.truststore.location={cluster.authority.path}\nsasl.mechanism={mechanism}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="orders" password="{password}";\n'
    )
    return main(["topics", "list", "--command-config", str(path)])


@pytest.mark.requirement("C13.2", "X2")
def test_others_are_kept_out(cluster: SecureCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        _same_answer_to_unknown_user(cluster, mechanism)
    _foreign_tokens(cluster)
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert _tool(cluster, tmp_path / "admin", PASSWORD, mechanism) == 0
        assert _tool(cluster, tmp_path / "admin", "wrong", mechanism) == 1
    assert "Authentication failed: invalid credentials" in capsys.readouterr().err
    _without_tls_or_authentication(cluster)
    _removed_user(cluster)


def _same_answer_to_unknown_user(cluster: SecureCluster, mechanism: str) -> None:
    for user, password in (("orders", "wrong"), ("nobody", PASSWORD)):
        told = _refusal(cluster.settings(mechanism, user, password))
        assert "_AUTHENTICATION" in told
        assert "Authentication failed: invalid credentials" in told


def _foreign_tokens(cluster: SecureCluster) -> None:
    for wrong in ({"audience": "other"}, {"seconds": -3600}):
        token, _ = cluster.token("orders", **wrong)  # type: ignore[arg-type]
        shown = (token, datetime.datetime.now(datetime.UTC).timestamp() + 3600)
        told = _refusal(cluster.settings("OAUTHBEARER") | {"oauth_cb": lambda _, shown=shown: shown})
        assert "_AUTHENTICATION" in told


def _without_tls_or_authentication(cluster: SecureCluster) -> None:
    plain = {"bootstrap.servers": cluster.client}
    assert "no error" not in _refusal(plain)
    encrypted = plain | {"security.protocol": "SSL", "ssl.ca.location": str(cluster.authority.path)}
    with pytest.raises(confluent_kafka.KafkaException):
        AdminClient(encrypted).list_topics(timeout=5)


def _removed_user(cluster: SecureCluster) -> None:
    """Its open connections end, too."""
    cluster.user("leaver")
    settings = cluster.settings("SCRAM-SHA-256", "leaver")
    errors: list[confluent_kafka.KafkaError] = []
    client = AdminClient(settings | {"error_cb": errors.append})
    assert client.list_topics(timeout=SECONDS_MAX).brokers
    admin = AdminClient({"bootstrap.servers": cluster.admin})
    deletions = [
        UserScramCredentialDeletion("leaver", mechanism)
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for deleted in admin.alter_user_scram_credentials(deletions).values():
        deleted.result(SECONDS_MAX)
    until = time.monotonic() + SECONDS_MAX
    while not any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in errors):
        assert time.monotonic() < until, errors
        try:
            client.list_topics(timeout=1)
        except confluent_kafka.KafkaException:
            client.poll(0.1)
