"""Two agents with TLS between them and for clients, and SASL: what librdkafka does there, and who is kept out."""

from __future__ import annotations

import datetime
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, UserScramCredentialDeletion

from headrace.cli.main import main
from tests import compat
from tests.agent_process import SECONDS_MAX
from tests.faults.secure_cluster import (
    JAVA_LOGINS,
    MECHANISMS,
    PASSWORD,
    SecureCluster,
    java_settings,
    secure_cluster,
)
from tests.java_program import java_command
from tests.kafka_clients import KafkaClients
from tests.tools import JAVA_LIBRARIES, KAFKA_JARS

EVERY_MECHANISM = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
RECORDS = 50
REST_SECONDS = 0.1
"""Between two looks at what agents count: their pages take more CPU time than the clients."""


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, module_agent_settings: dict[str, object]
) -> Iterator[SecureCluster]:
    with secure_cluster(tmp_path_factory.mktemp("secure"), module_agent_settings, 2) as running:
        yield running


@pytest.mark.slow
@pytest.mark.requirement("C13.2", "X2")
def test_librdkafka_writes_and_reads_in_a_group_by_each_mechanism_and_with_a_certificate(
    cluster: SecureCluster,
) -> None:
    """All at once, because a client waits for most of its time."""
    clients = {f"by-{mechanism}": cluster.settings(mechanism) for mechanism in EVERY_MECHANISM}
    clients["by-certificate"] = cluster.settings_of_certificate()
    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(_write_and_read, clients.values(), clients))
    _authenticate_again(cluster)


def _write_and_read(settings: dict[str, Any], topic: str) -> None:
    bootstrap = settings["bootstrap.servers"]
    KafkaClients(bootstrap, settings).create(topic, 4)
    KafkaClients(bootstrap, settings | {"enable.idempotence": True}).produce(topic, range(RECORDS), 4)
    found = KafkaClients(bootstrap, settings).read_in_group(topic, RECORDS, topic)
    assert sorted(int(message.value() or b"") for message in found) == list(range(RECORDS))


def _authenticate_again(cluster: SecureCluster) -> None:
    """Four producers continue while their connections log in again, at least every 2 s (KIP-368): no error, no new
    connection, which librdkafka would report."""
    errors: list[object] = []
    own = {"error_cb": errors.append, "topic.metadata.refresh.interval.ms": -1}
    producers = {name: confluent_kafka.Producer(cluster.settings(name) | own) for name in EVERY_MECHANISM}
    topics = {name: f"by-{name}" for name in EVERY_MECHANISM}
    for name, producer in producers.items():
        producer.produce(topics[name], b"first")
        assert producer.flush(SECONDS_MAX) == 0
    wanted = {name: cluster.logins(name) + 2 * len(cluster.agents) for name in EVERY_MECHANISM}
    until = time.monotonic() + SECONDS_MAX
    while any(cluster.logins(name) < wanted[name] for name in EVERY_MECHANISM):
        assert time.monotonic() < until
        for name, producer in producers.items():
            producer.produce(topics[name], b"again", on_delivery=partial(_note, errors))
            assert producer.flush(SECONDS_MAX) == 0
        time.sleep(REST_SECONDS)
    assert errors == []


def _note(errors: list[object], error: object, _: object) -> None:
    if error is not None:
        errors.append(error)


@pytest.mark.slow
@pytest.mark.needs("kafka-clients", "kafka")
@pytest.mark.requirement("C13.2", "X2")
def test_kafkas_own_client_by_each_mechanism_with_certificates_and_tokens(
    cluster: SecureCluster, tmp_path: Path
) -> None:
    """One process for all, as a JVM takes seconds to start. Its connections authenticate again every 2 s."""
    files = {name: java_settings(cluster, tmp_path, name) for name in (*JAVA_LOGINS, "OAUTHBEARER", "SSL")}
    files["token"] = files["again"] = files["SCRAM-SHA-512"]
    files["again-with-a-token"] = files["OAUTHBEARER"]
    its_own = [*KAFKA_JARS.glob("jackson-*.jar"), *KAFKA_JARS.glob("jose4j-*.jar")]  # by which it reads tokens
    libraries = ":".join(map(str, [JAVA_LIBRARIES / "*", *its_own]))
    source = Path(compat.__file__).with_name("SecureClient.java")
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={(tmp_path / 'token').as_uri()}"
    command = java_command(source, libraries, allowed)
    arguments = [f"{name}={path}" for name, path in files.items()]
    before = {name: cluster.logins(name) for name in ("SCRAM-SHA-512", "OAUTHBEARER")}
    run = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300, check=False)
    shown = sorted(line for line in run.stdout.splitlines() if line.startswith("read "))
    assert shown == sorted(f"read {name} true" for name in files), run.stdout + run.stderr[-4000:]
    for name, logins in before.items():
        assert cluster.logins(name) - logins > 8, "six connections, and those that authenticated again"


def _refusal(settings: dict[str, Any]) -> str:
    """Return what librdkafka says of the connection."""
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
    deletions = [UserScramCredentialDeletion("leaver", mechanism) for mechanism in MECHANISMS]
    for deleted in admin.alter_user_scram_credentials(deletions).values():
        deleted.result(SECONDS_MAX)
    until = time.monotonic() + SECONDS_MAX
    while not any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in errors):
        assert time.monotonic() < until, errors
        try:
            client.list_topics(timeout=1)
        except confluent_kafka.KafkaException:
            client.poll(0.1)
