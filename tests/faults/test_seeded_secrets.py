"""Secrets are planted everywhere an operator can put one, and looked for everywhere an agent writes or answers.

A secret counts as found as text, as base64, as hex, and as the escaped text of a URL.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import confluent_kafka
import psycopg
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headrace.cli.main import main
from headrace.cli.metastore_changes import seal_secrets
from headrace.config.free_ports import free_ports
from headrace.config.settings import Settings
from headrace.metastore.log.own_records import ScramKeys
from headrace.metastore.log.snapshot import decode_snapshot, load_image
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.store import PostgresMetastore
from tests.agent.access.certificates import Authority
from tests.agent_process import SECONDS_MAX, AgentUnderTest
from tests.fixtures_s3 import SECRET_KEY
from tests.kafka_clients import KafkaClients

SECRETS = {
    "scram password": b"planted-scram-password",
    "wrong password": b"planted-wrong-password",
    "token key": b"planted-token-master-key",
    "key passphrase": b"planted-tls-passphrase",
    "s3 key": SECRET_KEY.encode(),
    "bearer token": b"planted-bearer-token",
    "registry password": b"planted-registry-password",
    "catalog password": b"planted-catalog-password",
    "sealing key": b"planted-key-that-seals-32-bytes.",
}


SEALING_KEY = base64.b64encode(SECRETS["sealing key"]).decode()


def spellings(secret: bytes) -> dict[str, bytes]:
    """Return how it may look in a text or dump. The base64 in the middle of a longer text is the same but for its
    ends.
    """
    found = {"raw": secret, "hex": secret.hex().encode(), "base64": base64.b64encode(secret)[:-4]}
    return found | {"url": quote(secret, safe="").encode()}


@dataclass
class Evidence:
    """What was written and answered, by where."""

    texts: dict[str, bytes] = field(default_factory=dict)

    def add(self, where: str, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.texts[where] = self.texts.get(where, b"") + data

    def found(self, secrets: Mapping[str, bytes]) -> list[tuple[str, str, str]]:
        """(where, which secret, which spelling)."""
        return [
            (where, name, spelling)
            for where, text in self.texts.items()
            for name, secret in secrets.items()
            for spelling, shown in spellings(secret).items()
            if shown in text or shown.lower() in text
        ]


@dataclass
class Planted:
    """A running agent with the secrets, and the addresses of its listeners."""

    agent: AgentUnderTest
    client: str
    admin: str
    trusted: Path
    settings: Mapping[str, object]
    environment: Mapping[str, str]
    secrets: dict[str, bytes]


@pytest.fixture
def planted(
    tmp_path: Path,
    agent_settings: dict[str, object],
    postgres_server: EmbeddedPostgres,
    metastore_url: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Planted]:
    authority = Authority(tmp_path)
    url = postgres_server.tcp_url(urlsplit(metastore_url).path.lstrip("/"))
    secrets = SECRETS | {"postgres password": str(urlsplit(url).password).encode()}
    secrets["zone secret"] = _zone_secret(metastore_url)
    files = {
        "metastore.url": url,
        "delegation.token.secret.key": "planted-token-master-key",
        "metadata.secret.keys": SEALING_KEY,
    }
    settings = {name: value for name, value in agent_settings.items() if name != "metastore.url"}
    for name, value in files.items():
        (tmp_path / name).write_text(value + "\n")
        settings[name] = f"${{file:{tmp_path / name}}}"
    (tmp_path / "tokens").write_text("planted-bearer-token")
    settings["http.bearer.token.location"] = str(tmp_path / "tokens")
    settings["ssl.key.password"] = settings["http.ssl.key.password"] = "${env:PASSPHRASE}"
    settings["http.ssl.keystore.location"] = str(authority.issue("http", password="planted-tls-passphrase"))
    client, admin = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings |= {
        "listeners": f"CLIENT://{client},ADMIN://{admin}",
        "listener.security.protocol.map": "CLIENT:SASL_SSL,ADMIN:PLAINTEXT",
        "inter.broker.listener.name": "ADMIN",
        "ssl.keystore.location": str(authority.issue("agent", password="planted-tls-passphrase")),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "log.level": "debug",
        "tables.schema.registry.url": "https://reader:planted-registry-password@127.0.0.1:1",
        "tables.catalog.uri": "postgresql+psycopg://reader:planted-catalog-password@127.0.0.1:1/lake",
    }
    monkeypatch.setenv("PASSPHRASE", "planted-tls-passphrase")
    environment = dict(os.environ)
    with AgentUnderTest(settings) as agent:
        yield Planted(agent, client, admin, authority.path, settings, environment, secrets)


def _zone_secret(url: str) -> bytes:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT zone_secret FROM cluster").fetchone()
    assert row is not None
    return bytes(row[0])


@pytest.mark.requirement("X2")
def test_no_secret_is_written_or_answered(
    planted: Planted, metastore_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    evidence = Evidence()
    _use(planted, evidence)
    _command_line(planted, evidence)
    _http(planted, evidence)
    _metadata_log(planted, evidence)
    planted.secrets |= _seal_while_it_runs(planted, metastore_url)
    _login(planted, evidence)
    _refused_commands(planted, evidence, capfd)
    planted.agent.stop()
    output = capfd.readouterr()
    evidence.add("log", output.err)
    evidence.add("stdout", output.out)
    assert len(evidence.texts["log"]) > 1_000, "the agent's log was captured"
    assert evidence.found(planted.secrets) == []
    _tables(metastore_url, evidence)
    assert evidence.found(planted.secrets) == []


def _use(planted: Planted, evidence: Evidence) -> None:
    """Users, right and wrong passwords, topics, configs."""
    admin = AdminClient({"bootstrap.servers": planted.admin})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion("orders", info, SECRETS["scram password"])
    for changed in admin.alter_user_scram_credentials([change]).values():
        changed.result(SECONDS_MAX)
    for created in admin.create_topics([NewTopic("orders", 1)]).values():
        created.result(SECONDS_MAX)
    _login(planted, evidence)
    resources = [
        ConfigResource(ResourceType.BROKER, str(planted.agent.node_id)),
        ConfigResource(ResourceType.TOPIC, "orders"),
    ]
    for described in admin.describe_configs(resources).values():
        entries = described.result(SECONDS_MAX)
        assert entries
        evidence.add("DescribeConfigs", json.dumps({name: entry.value for name, entry in entries.items()}))
    users = admin.describe_user_scram_credentials(["orders"])["orders"].result(SECONDS_MAX)
    evidence.add("DescribeUserScramCredentials", str(users))


def _login(planted: Planted, evidence: Evidence) -> None:
    """Log in with the right password and with a wrong one."""
    login = {
        "bootstrap.servers": planted.client,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(planted.trusted),
        "sasl.username": "orders",
        "log_level": 0,
    }
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        right = AdminClient(login | {"sasl.mechanism": mechanism, "sasl.password": "planted-scram-password"})
        evidence.add("metadata", repr(right.list_topics(timeout=SECONDS_MAX).topics))
        errors: list[confluent_kafka.KafkaError] = []
        wrong = {"sasl.mechanism": mechanism, "sasl.password": "planted-wrong-password", "error_cb": errors.append}
        refused = AdminClient(login | wrong)
        while not errors:
            refused.poll(0.1)
        evidence.add("error answer", str(errors))


def _seal_while_it_runs(planted: Planted, url: str) -> dict[str, bytes]:
    """Seal what the agent wrote in clear, and wait until the log and the snapshots before are gone. The user's keys,
    which were in clear until then."""
    settings = Settings(metastore_url=url, metadata_secret_keys=SEALING_KEY, metastore_pool_size=1)
    before = Evidence()
    _tables(url, before)
    keys = asyncio.run(_keys_of_orders(settings))
    in_clear = {where for where, _, _ in before.found(planted.secrets | keys)}
    assert {"table cluster", "table metadata_log"} <= in_clear, "otherwise this test would look in the wrong places"
    for line in asyncio.run(seal_secrets(settings)):
        assert "sealed now" in line or "metadata.secrets=1" in line
    until = time.monotonic() + SECONDS_MAX
    while True:
        after = Evidence()
        _tables(url, after)
        if not after.found(planted.secrets | keys):
            return keys
        assert time.monotonic() < until, after.found(planted.secrets | keys)
        time.sleep(0.1)


async def _keys_of_orders(settings: Settings) -> dict[str, bytes]:
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        (keys,) = (await load_image(metastore.cluster)).scram_credentials["orders"]
    finally:
        await metastore.close()
    assert isinstance(keys, ScramKeys)
    return {"stored key": keys.stored_key, "server key": keys.server_key}


def _command_line(planted: Planted, evidence: Evidence) -> None:
    process = planted.agent._process.pid
    evidence.add("command line", Path(f"/proc/{process}/cmdline").read_bytes())


def _http(planted: Planted, evidence: Evidence) -> None:
    context = ssl.create_default_context(cafile=planted.trusted)
    for path in ("/healthz", "/readyz?verbose", "/metrics", "/v1/status", "/openapi.json", "/nothing"):
        for token in (SECRETS["bearer token"].decode(), "planted-wrong-password"):
            headers = {"Authorization": f"Bearer {token}"}
            request = urllib.request.Request(f"https://{planted.agent.http}{path}", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=SECONDS_MAX, context=context) as response:
                    evidence.add(f"HTTP {path}", response.read())
            except urllib.error.HTTPError as error:
                evidence.add(f"HTTP {path}", error.read())
    assert b"headrace_build_info" in evidence.texts["HTTP /metrics"]
    assert b"unauthorized" in evidence.texts["HTTP /metrics"]


def _metadata_log(planted: Planted, evidence: Evidence) -> None:
    found = KafkaClients(planted.admin).read_to_end("__cluster_metadata")
    for message in found:
        evidence.add("metadata log", message.value() or b"")
    assert len(found) > 3


def _refused_commands(planted: Planted, evidence: Evidence, capfd: pytest.CaptureFixture[str]) -> None:
    """Commands that fail with a secret in their settings, and tools that show what there is."""
    before = capfd.readouterr()
    evidence.add("log", before.err)
    evidence.add("stdout", before.out)
    wrong = "postgresql://headrace:planted-wrong-password@127.0.0.1:1/headrace"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in planted.environment.items():
            patch.setenv(name, value)
        patch.setenv("HEADRACE_METASTORE_URL", wrong)
        main(["migrate", "--plan"])
        patch.setenv("HEADRACE_METASTORE_URL", wrong.replace(":1/", ":no-port/"))
        main(["migrate", "--plan"])
        patch.setenv("HEADRACE_METASTORE_URL", wrong.replace("@127.0.0.1:1", "@no.such.host.invalid"))
        main(["migrate", "--plan"])
        patch.setenv("HEADRACE_METASTORE_URL", str(planted.settings["metastore.url"]))
        patch.setenv("HEADRACE_TABLES_CATALOG_NAME", "lake")
        for catalog in ("pgsql://reader:planted-catalog-password@h/x", "http//r:planted-catalog-password@h"):
            patch.setenv("HEADRACE_TABLES_CATALOG_URI", catalog)
            main(["tables", "list", "--bucket", str(planted.settings["bucket"])])
        patch.setenv("HEADRACE_LINGER_MS", "${env:PASSPHRASE}")
        main(["agent"])
    shown = capfd.readouterr()
    evidence.add("commands", shown.err + shown.out)
    assert "linger.ms" in shown.err


def _tables(url: str, evidence: Evidence) -> None:
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
        for (table,) in tables:
            for (row,) in connection.execute(f'SELECT t::text FROM "{table}" t'):  # type: ignore[call-overload]
                evidence.add(f"table {table}", row + "\n")
        for (data,) in connection.execute("SELECT data FROM metadata_snapshots"):
            evidence.add("snapshots", b"".join(decode_snapshot(bytes(data))[1]))


def test_a_secret_that_is_shown_would_be_found() -> None:
    """A planted bug, in each spelling."""
    for shown in spellings(SECRETS["token key"]).values():
        evidence = Evidence()
        evidence.add("log", b"key=" + shown + b" ...")
        assert [(where, name) for where, name, _ in evidence.found(SECRETS)]
