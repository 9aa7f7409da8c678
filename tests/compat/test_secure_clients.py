"""kafkajs, aiokafka and kafka-python over TLS: with a certificate, and with each mechanism of SASL that they have.

librdkafka and Kafka's own client: tests/faults/test_secure_cluster.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest
from aiokafka.abc import AbstractTokenProvider
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokenProvider

from tests.agent_process import format_storage
from tests.compat.clients import TIMEOUT_SECONDS
from tests.faults.secure_cluster import PASSWORD, SecureCluster, secure_cluster
from tests.tools import KAFKAJS

PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
EVERY_LOGIN = (*PASSWORD_MECHANISMS, "OAUTHBEARER", "certificate")
RECORDS = 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, module_metastore_url: str) -> Iterator[SecureCluster]:
    """One agent."""
    folder = tmp_path_factory.mktemp("secure")
    (folder / "bucket").mkdir()
    settings: dict[str, object] = {
        "metastore.url": module_metastore_url,
        "bucket": (folder / "bucket").as_uri(),
        "group.initial.rebalance.delay.ms": 0,
        "linger.ms": 5,
        "log.level": "error",
    }
    format_storage(settings)
    with secure_cluster(folder, settings, 1, {"connections.max.reauth.ms": 0}) as running:
        for login in EVERY_LOGIN:
            for client in ("aiokafka", "kafka-python"):
                running.topic(f"{client}-{login}", 2)
        yield running


@pytest.mark.requirement("C13.2", "X2")
def test_each_client_with_each_login(cluster: SecureCluster) -> None:
    for login in EVERY_LOGIN:
        asyncio.run(_aiokafka(cluster, login))
        _kafka_python(cluster, login)  # not with a wrong password: it tries again for 30 s
    for login in PASSWORD_MECHANISMS:
        with pytest.raises(aiokafka.errors.KafkaError):  # it hides the reason
            asyncio.run(_aiokafka(cluster, login, "wrong"))
        assert cluster.logins(login, result="failed") == 1


@pytest.mark.needs("kafkajs")
@pytest.mark.requirement("C13.2", "X2")
def test_kafkajs_with_each_login(cluster: SecureCluster) -> None:
    logins = {login: _kafkajs(cluster, login) for login in EVERY_LOGIN}
    logins |= {f"wrong-{login}": _kafkajs(cluster, login, "wrong") for login in PASSWORD_MECHANISMS}
    done = subprocess.run(
        ["node", str(Path(__file__).with_name("kafkajs_secure.cjs")), json.dumps(logins)],
        env=os.environ | {"KAFKAJS": str(KAFKAJS), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[: len(EVERY_LOGIN)] == [f"{login} works" for login in EVERY_LOGIN], done.stderr
    for login, line in zip(PASSWORD_MECHANISMS, lines[len(EVERY_LOGIN) :], strict=True):
        assert line.startswith(f"wrong-{login} ")
        assert "authentication failed" in line


def _kafkajs(cluster: SecureCluster, login: str, password: str = PASSWORD) -> dict[str, Any]:
    found: dict[str, Any] = {"bootstrap": cluster.client, "ca": str(cluster.authority.path)}
    if login == "certificate":
        return found | {"bootstrap": cluster.link, "certificate": str(cluster.authority.issue("orders"))}
    if login == "OAUTHBEARER":
        return found | {"token": cluster.token("orders")[0]}
    return found | {"sasl": {"mechanism": login.lower(), "username": "orders", "password": password}}


def _python_settings(cluster: SecureCluster, login: str, password: str = PASSWORD) -> dict[str, Any]:
    """Return what aiokafka and kafka-python have in common."""
    context = ssl.create_default_context(cafile=str(cluster.authority.path))
    found: dict[str, Any] = {"bootstrap_servers": cluster.client, "ssl_context": context}
    if login == "certificate":
        context.load_cert_chain(cluster.authority.issue("orders"))
        return found | {"bootstrap_servers": cluster.link, "security_protocol": "SSL"}
    found |= {"security_protocol": "SASL_SSL", "sasl_mechanism": login}
    if login == "OAUTHBEARER":
        return found
    return found | {"sasl_plain_username": "orders", "sasl_plain_password": password}


class _Token(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, cluster: SecureCluster) -> None:
        self._cluster = cluster

    async def token(self) -> str:
        return self._cluster.token("orders")[0]


async def _aiokafka(cluster: SecureCluster, login: str, password: str = PASSWORD) -> None:
    settings, topic = _python_settings(cluster, login, password), f"aiokafka-{login}"
    if login == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = _Token(cluster)
    producer = aiokafka.AIOKafkaProducer(**settings)
    try:
        await producer.start()
        for number in range(RECORDS):
            await producer.send_and_wait(topic, str(number).encode())
    finally:
        await producer.stop()
    group = {"group_id": topic, "auto_offset_reset": "earliest"}
    async with aiokafka.AIOKafkaConsumer(topic, **settings, **group) as consumer:
        values = [int((await consumer.getone()).value) for _ in range(RECORDS)]
    assert sorted(values) == list(range(RECORDS))


class _KafkaPythonToken(KafkaPythonTokenProvider):  # type: ignore[misc]
    cluster: SecureCluster

    def token(self) -> str:
        return self.cluster.token("orders")[0]


def _kafka_python(cluster: SecureCluster, login: str) -> None:
    settings, topic = _python_settings(cluster, login), f"kafka-python-{login}"
    if login == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = provider = _KafkaPythonToken()
        provider.cluster = cluster
    producer = kafka.KafkaProducer(**settings)
    try:
        sent = [producer.send(topic, str(number).encode()) for number in range(RECORDS)]
        for each in sent:
            each.get(TIMEOUT_SECONDS)
    finally:
        producer.close()
    group = {"group_id": topic, "auto_offset_reset": "earliest"}
    consumer = kafka.KafkaConsumer(topic, **settings, **group)
    values = [int(next(consumer).value) for _ in range(RECORDS)]
    assert sorted(values) == list(range(RECORDS))
    consumer.close()
