"""A console of agents with TLS and SASL: it logs in as the other tools do, and says so if it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from headrace.cli.console.server import ConsoleOptions, ConsoleServer
from headrace.config.settings import Settings
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.protocol.client.transport import client_config
from headrace.storage.clock import SystemClock
from tests.agent_process import SECONDS_MAX, format_storage
from tests.cli.console.browser import PlainBrowser
from tests.cli.console.conftest import serving
from tests.faults.secure_cluster import SecureCluster, java_settings, secure_cluster

TOPIC = "secured"
MECHANISMS = ("PLAIN", "SCRAM-SHA-512", "SSL")
"""SSL: by a certificate, on the listener that asks for one."""


@pytest.fixture(scope="module")
def secured(
    postgres_server: EmbeddedPostgres, metastore_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecureCluster]:
    """One agent, and a topic with a record."""
    import psycopg

    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE secure_console TEMPLATE {metastore_template}")
    directory = tmp_path_factory.mktemp("secure-console")
    settings = {"metastore.url": postgres_server.url("secure_console"), "bucket": f"file://{directory}/bucket"}
    format_storage(settings)
    with secure_cluster(directory, {**settings, "log.level": "warning"}, 1) as cluster:
        cluster.topic(TOPIC, 1)
        producer = confluent_kafka.Producer(cluster.settings("SCRAM-SHA-512"))
        producer.produce(TOPIC, "only for readers")
        assert producer.flush(SECONDS_MAX) == 0
        yield cluster


def _console(properties: Path) -> ConsoleServer:
    options = ConsoleOptions(client_config(None, properties), Settings(), ("127.0.0.1", 0), allows_changes=False)
    return ConsoleServer(options, SystemClock())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_pages_are_those_of_any_cluster(secured: SecureCluster, mechanism: str, tmp_path: Path) -> None:
    with serving(_console(java_settings(secured, tmp_path, mechanism))) as console:
        pages = PlainBrowser(console.url)
        assert "1 of 1" in pages.get("/").text
        assert TOPIC in pages.get("/topics").text
        assert "only for readers" in pages.get("/records", topic=TOPIC, start="earliest").text
        assert pages.get("/configs").status == 200


def test_a_login_that_fails_is_named_without_its_password(secured: SecureCluster, tmp_path: Path) -> None:
    properties = java_settings(secured, tmp_path, "SCRAM-SHA-512")
    properties.write_text(properties.read_text().replace("correct horse", "another horse"))
    with serving(_console(properties)) as console:
        answer = PlainBrowser(console.url).get("/topics")
    assert answer.status >= 500
    assert "SASL_AUTHENTICATION_FAILED" in answer.text or "authentication" in answer.text.lower()
    assert "horse" not in answer.text


def test_an_authority_that_did_not_sign_the_agents_is_refused(secured: SecureCluster, tmp_path: Path) -> None:
    from tests.agent.access.certificates import Authority

    properties = java_settings(secured, tmp_path, "SCRAM-SHA-512")
    other = Authority(tmp_path)
    properties.write_text(properties.read_text().replace(str(secured.authority.path), str(other.path)))
    with serving(_console(properties)) as console:
        answer = PlainBrowser(console.url).get("/topics")
    assert answer.status >= 500
    assert "certificate" in answer.text.lower()
    assert "only for readers" not in answer.text
