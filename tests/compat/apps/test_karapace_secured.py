"""Karapace over SASL_SSL with the settings, users and ACLs of SCHEMAS.md: registered schemas, and records in Avro.

All users have one password, in the cluster and in the registry.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.config.free_ports import free_ports
from tests.agent.access.certificates import Authority
from tests.agent_process import format_storage
from tests.compat.apps.app import SECONDS_MAX, App
from tests.examples import EXAMPLES, changed, json_object, settings
from tests.faults.secure_cluster import PASSWORD, SecureCluster, secure_cluster
from tests.tools.python_apps import python_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("karapace"),
]
PAGE = Path(__file__).parents[3] / "docs" / "start" / "SCHEMAS.md"
PROGRAM = EXAMPLES / "karapace" / "avro_records.py"
TOPIC, SUBJECT, RECORDS = "orders", "orders-value", 20
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "item", "type": "string"}],
}
CHANGED = SCHEMA | {"fields": [*SCHEMA["fields"], {"name": "note", "type": "string", "default": ""}]}
BREAKING = SCHEMA | {"fields": [*SCHEMA["fields"], {"name": "note", "type": "string"}]}
CLIENT = """\
topics: [{name: orders, partitions: 1}]
acls:
  - {principal: User:orders, resource: {type: topic, name: orders}, operations: [Read, Write]}
  - {principal: User:orders, resource: {type: group, name: orders}, operations: [Read]}
"""


def _block(language: str) -> str:
    """Return the page's only block of code in this language."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(text)


class SecuredRegistry:
    """Karapace as the page shows it. Only addresses, the port and paths differ."""

    def __init__(self, cluster: SecureCluster, folder: Path) -> None:
        (port,) = free_ports(1)
        self.url, self._folder = f"https://127.0.0.1:{port}", folder
        self._context = ssl.create_default_context(cafile=str(cluster.authority.path))
        keystore = str(cluster.authority.issue("registry"))
        _write(folder / "karapace.env", changed(settings("karapace/karapace.env"), {"KARAPACE_PORT": str(port)}))
        pairs = (line.partition("=") for line in _block("sh").splitlines())
        changes = {
            "KARAPACE_BOOTSTRAP_URI": cluster.client,
            "KARAPACE_SSL_CAFILE": str(cluster.authority.path),
            "KARAPACE_SASL_PLAIN_PASSWORD": f'"$(cat {folder}/secrets/registry)"',
            "KARAPACE_SERVER_TLS_CERTFILE": keystore,
            "KARAPACE_SERVER_TLS_KEYFILE": keystore,
            "KARAPACE_REGISTRY_AUTHFILE": str(folder / "users.json"),
        }
        _write(folder / "secured.env", changed({name: value for name, _, value in pairs}, changes))
        users = json.loads(_block("json"))
        hashed = [_hashed(user["username"]) for user in users["users"]]
        (folder / "users.json").write_text(json.dumps(users | {"users": hashed}))

    def started(self) -> App:
        """A context: it runs."""
        files = f". {self._folder}/karapace.env; . {self._folder}/secured.env"
        command = f"set -a; {files}; exec '{python_of('karapace')}' -m karapace"
        faster = {"KARAPACE_WAITING_TIME_BEFORE_ACTING_AS_MASTER_MS": "100", "PYTHONPATH": ""}
        return App(["sh", "-c", command], self._folder / "log", faster)

    def ask(self, path: str, body: object = None, method: str = "GET", user: str | None = "ci") -> object:
        """The answer's JSON, or the status of a refusal."""
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        if user is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(f'{user}:{PASSWORD}'.encode()).decode()}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._context) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code

    def register(self, schema: Mapping[str, object], user: str | None = "ci") -> object:
        return self.ask(f"/subjects/{SUBJECT}/versions", {"schema": json.dumps(schema)}, "POST", user)

    def is_up(self) -> bool:
        """Return whether it takes writes, which it does once it has read its topic and leads."""
        with suppress(OSError):
            return self.ask("/config", {"compatibility": "BACKWARD"}, "PUT") == {"compatibility": "BACKWARD"}
        return False

    def versions(self) -> list[object]:
        paths = [f"/subjects/{SUBJECT}/versions/{number}" for number in (1, 2)]
        return [self.ask(path) for path in ("/subjects", *paths)]


def _write(file: Path, lines: Mapping[str, str]) -> None:
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))


def _hashed(user: str) -> object:
    """Return what the page's command prints."""
    command = [python_of("karapace"), "-m", "karapace.core.auth", "-u", user, PASSWORD]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=SECONDS_MAX).stdout)


@pytest.fixture
def cluster(metastore_url: str, tmp_path: Path) -> Iterator[SecureCluster]:
    """One agent with ACLs, and with the objects of the page."""
    for name in ("bucket", "secrets"):
        (tmp_path / name).mkdir()
    (tmp_path / "secrets" / "registry").write_text(PASSWORD)
    stored: dict[str, object] = {"metastore.url": metastore_url, "bucket": (tmp_path / "bucket").as_uri()}
    format_storage(stored)
    access = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:CN=agent",
    }
    with secure_cluster(tmp_path, stored | {"log.level": "error"}, 1, access, Authority(tmp_path)) as running:
        for name, text in (("registry", _block("yaml")), ("client", CLIENT)):
            (file := tmp_path / f"{name}.yaml").write_text(text)
            assert main(["cluster", "apply", "-f", str(file), "-b", running.admin]) == 0
        yield running


def test_schemas_and_records_over_tls_and_sasl(cluster: SecureCluster, tmp_path: Path) -> None:
    registry = SecuredRegistry(cluster, tmp_path)
    with registry.started() as app:
        app.until(registry.is_up, "the registry is up")
        assert registry.register(SCHEMA, user=None) == 401
        assert registry.register(SCHEMA, user="orders") == 404, "subjects that may not be written are hidden"
        assert registry.register(SCHEMA) == {"id": 1}
        assert registry.register(BREAKING) == 409
        assert registry.register(CHANGED) == {"id": 2}
        before = registry.versions()
        assert _records(cluster, registry, tmp_path) == [
            {"id": n, "item": f"item {n}", "note": ""} for n in range(RECORDS)
        ]
        app.kill()
    with registry.started() as app:
        app.until(registry.is_up, "the registry is up again")
        assert registry.versions() == before
        assert len(_records(cluster, registry, tmp_path)) == RECORDS
    assert cluster.logins("SCRAM-SHA-512") > 0


def _records(cluster: SecureCluster, registry: SecuredRegistry, folder: Path) -> list[object]:
    """Return what the example writes and reads."""
    authority = str(cluster.authority.path)
    login = {"bootstrap.servers": cluster.client, "ssl.ca.location": authority, "sasl.password": PASSWORD}
    ask = {"url": registry.url, "ssl.ca.location": authority, "basic.auth.user.info": f"orders:{PASSWORD}"}
    for name, changes in (("cluster", login), ("registry", ask)):
        (folder / f"{name}.json").write_text(json.dumps(json_object(f"karapace/{name}.json", changes)))
    words = [python_of("karapace"), PROGRAM, folder / "cluster.json", folder / "registry.json", TOPIC, str(RECORDS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS_MAX, env={"PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
