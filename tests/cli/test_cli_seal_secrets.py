"""`headrace storage seal-secrets`: new and old clusters, new keys, and agents without the key."""

from __future__ import annotations

import asyncio
import base64
import uuid
from pathlib import Path

import psycopg
import pytest

from headrace.agent.access.sasl.exchange import AuthenticationFailed
from headrace.agent.access.sasl.passwords import Credentials
from headrace.cli.main import main
from headrace.config.settings import Settings
from headrace.metastore.api.agents import SEALED_SECRETS, AgentRegistration, agent_features
from headrace.metastore.log.scram_keys import SealedKeys
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.sealing import Sealing, is_sealed
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError, UnsupportedFeatureError
from tests.agent_process import ended_agent

pytestmark = pytest.mark.requirement("X2")
OLD, NEW = (base64.b64encode(letter * 32).decode() for letter in (b"o", b"n"))
CLUSTER_ID = "3Db5QLSqSZieL3rJBUUegA"


class Place:
    """An empty database and an empty bucket."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url, self._directory = url, directory
        (directory / "bucket").mkdir()
        (directory / "password").write_text("open sesame")
        self.flags = ["--metastore-url", url, "--bucket", (directory / "bucket").as_uri()]

    def run(self, *command: str, keys: str = "") -> int:
        (self._directory / "keys").write_text(keys.replace(",", "\n") + "\n")
        secret = ["--metadata-secret-keys", f"${{file:{self._directory / 'keys'}}}"] if keys else []
        return main([*command, *(self.flags if command[0] != "storage" else self.flags[:2]), *secret])

    def format(self, keys: str = "") -> int:
        user = f"SCRAM-SHA-256=[name=admin,password-file={self._directory / 'password'}]"
        return self.run("storage", "format", "-t", CLUSTER_ID, "--add-scram", user, *self.flags[2:], keys=keys)

    def open(self, keys: str | None = None) -> Settings:
        return Settings(metastore_url=self.url, metastore_pool_size=1, metadata_secret_keys=keys)

    def stored(self) -> list[bytes]:
        """The columns of the zone secret, without NULL."""
        with psycopg.connect(self.url) as connection:
            row = connection.execute("SELECT zone_secret, zone_secret_other FROM cluster").fetchone()
        assert row is not None
        return [bytes(value) for value in row if value is not None]

    def zone_secret(self, keys: str | None) -> bytes:
        async def ask() -> bytes:
            metastore = await PostgresMetastore.open(self.url, self.open(keys))
            try:
                return await metastore.cluster.zone_secret()
            finally:
                await metastore.close()

        return asyncio.run(ask())

    def login(self, keys: str | None) -> bool:
        async def ask() -> bool:
            metastore = await PostgresMetastore.open(self.url, self.open(keys))
            try:
                image, sealed_keys = (
                    await load_image(metastore.cluster),
                    SealedKeys(Sealing(keys), metastore.cluster_id),
                )
            finally:
                await metastore.close()
            credentials = Credentials(lambda: image, lambda: None, SystemClock(), b"pepper", sealed_keys)
            assert await credentials.fitting("admin", "open barley") is None
            return await credentials.fitting("admin", "open sesame") is not None

        return asyncio.run(ask())

    def register(self, node_id: int, *, has_secret_keys: bool) -> None:
        async def join() -> None:
            metastore = await PostgresMetastore.open(self.url, self.open())
            features = agent_features(has_secret_keys=has_secret_keys)
            try:
                await metastore.cluster.register_agent(
                    AgentRegistration(node_id, uuid.uuid4(), "127.0.0.1", 9092, None, features=features)
                )
            finally:
                await metastore.close()

        asyncio.run(join())

    def unregister(self, node_id: int) -> None:
        async def leave() -> None:
            metastore = await PostgresMetastore.open(self.url, self.open())
            try:
                await metastore.cluster.unregister_agent(
                    node_id, (await load_image(metastore.cluster)).agents[node_id].broker_epoch
                )
            finally:
                await metastore.close()

        asyncio.run(leave())


@pytest.fixture
def place(postgres_server: EmbeddedPostgres, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    name = f"unsealed_{abs(hash(request.node.nodeid))}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return Place(postgres_server.url(name), tmp_path)


def test_a_cluster_that_begins_with_a_key_is_sealed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.format(keys=OLD) == 0
    assert "Adding user admin" in capsys.readouterr().out
    assert all(map(is_sealed, place.stored()))
    assert place.login(OLD)
    for keys in (None, NEW):
        with pytest.raises(AuthenticationFailed, match="lacks the key"):
            place.login(keys)
    assert place.format(keys=OLD) == 1, "formatted already"


@pytest.mark.parametrize("keys", ["", NEW])
def test_an_agent_without_the_key_ends_at_its_start(place: Place, keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.format(keys=OLD) == 0
    if keys:
        monkeypatch.setenv("HEADRACE_METADATA_SECRET_KEYS", keys)
    ended = ended_agent(["--listeners", "PLAINTEXT://127.0.0.1:0", "--http-port", "0", *place.flags])
    assert ended.returncode == 1
    assert "metadata.secret.keys lacks the key of a secret of the cluster: key_id=" in ended.stderr
    assert "Traceback" not in ended.stderr
    with pytest.raises(UnsupportedFeatureError, match=SEALED_SECRETS):
        place.register(1, has_secret_keys=False)


def test_an_old_cluster_is_sealed_when_every_agent_has_a_key(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.format() == 0
    before = place.zone_secret(None)
    assert place.stored() == [before]
    place.register(1, has_secret_keys=True)
    place.register(2, has_secret_keys=False)
    assert place.run("storage", "seal-secrets", keys=OLD) == 1
    assert "an agent does not support the level: feature=metadata.secrets level=1 node_id=2" in capsys.readouterr().err
    assert place.stored() == [before]
    place.unregister(2)
    assert place.run("storage", "seal-secrets", keys=OLD) == 0
    assert "users: 1 sealed now\nzone secret: sealed now" in capsys.readouterr().out
    assert place.zone_secret(OLD) == before, "agents that run go on with it"
    assert before not in place.stored()
    assert place.login(OLD)
    assert place.run("storage", "seal-secrets", keys=OLD) == 0
    assert "users: 0 sealed now\nzone secret: sealed before" in capsys.readouterr().out


def test_a_new_key_replaces_the_old_one(place: Place) -> None:
    assert place.format(keys=OLD) == 0
    secret = place.zone_secret(OLD)
    assert place.run("storage", "rotate-zone-secret", keys=OLD) == 0
    assert place.run("storage", "seal-secrets", keys=f"{NEW},{OLD}") == 0
    assert len(place.stored()) == 2, "in the middle of the other rotation"
    assert place.zone_secret(NEW) == secret
    assert place.login(NEW)
    with pytest.raises(InvalidError, match="lacks the key"):
        place.zone_secret(OLD)


def test_a_new_zone_secret_is_sealed_from_the_start(place: Place) -> None:
    assert place.format(keys=OLD) == 0
    before = place.zone_secret(OLD)
    for _ in range(3):
        assert place.run("storage", "rotate-zone-secret", keys=OLD) == 0
        assert all(map(is_sealed, place.stored()))
    assert place.zone_secret(OLD) != before
    assert place.run("storage", "rotate-zone-secret") == 1, "without the key"


def test_the_command_needs_a_key(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.format() == 0
    assert place.run("storage", "seal-secrets") == 1
    assert "metadata.secret.keys is not set" in capsys.readouterr().err
    assert place.run("storage", "seal-secrets", keys="secret-but-no-key") == 1
    message = capsys.readouterr().err
    assert "32 bytes in base64" in message
    assert "secret-but-no-key" not in message
