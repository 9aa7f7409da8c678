"""A cluster's life by commands, with its bucket on Azurite and on fake-gcs-server: formatted, written and read, looked
at, backed up, lost and restored; and what is said of a wrong place.

Real agents and a real Postgres.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

from headrace.cli.main import main
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.installation import find_installation
from headrace.storage.file_id import SEGMENTS
from headrace.storage.objects.store import ObjectStore
from tests.agent_process import AgentUnderTest, ended_agent
from tests.fixtures_clouds import (
    ACCOUNT,
    CONTAINER,
    KEY,
    CloudBucket,
    azurite_url,
    bucket_of,
    cloud_bucket,
    fake_gcs_url,
)
from tests.kafka_clients import KafkaClients

__all__ = ["azurite_url", "cloud_bucket", "fake_gcs_url"]

CLUSTER = "3Db5QLSqSZieL3rJBUUegA"
RECORDS = 40
PROGRAMS = find_installation().bin_dir


@dataclass
class Place:
    """A metastore that may be lost, and a bucket on an emulator."""

    server: EmbeddedPostgres
    bucket: CloudBucket
    name: str = ""

    def __post_init__(self) -> None:
        self.name = f"clouds_{uuid.uuid4().hex[:8]}"
        self.create()

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    def create(self) -> None:
        self._run(f"CREATE DATABASE {self.name} ENCODING 'UTF8' TEMPLATE template0")

    def lose(self) -> None:
        self._run(f"DROP DATABASE {self.name} WITH (FORCE)")

    def flags(self, bucket: CloudBucket | None = None) -> list[str]:
        return ["--metastore-url", self.url, *(bucket or self.bucket).flags]

    def elsewhere(self, prefix: str) -> CloudBucket:
        """Return another place: what follows the last slash is another."""
        before, _, _ = self.bucket.url.rpartition("/")
        return CloudBucket({**self.bucket.settings, "bucket": f"{before}/{prefix}"})

    def agent(self) -> AgentUnderTest:
        roles = {"process.roles": "broker,controller,compactor", "log.level": "error"}
        return AgentUnderTest({"metastore.url": self.url, **self.bucket.settings, **roles})

    def refusal(self, bucket: CloudBucket) -> str:
        """Return what an agent with this bucket says before it ends."""
        words = ["--listeners", "PLAINTEXT://127.0.0.1:0", "--http-port", "0", "--log-level", "error"]
        ended = ended_agent([*self.flags(bucket), *words])
        assert ended.returncode == 1
        return ended.stderr

    async def objects(self) -> list[str]:
        store: ObjectStore = self.bucket.open()
        try:
            return [info.key async for info in store.list_objects(SEGMENTS)]
        finally:
            await store.close()

    async def delete(self, key: str) -> None:
        store: ObjectStore = self.bucket.open()
        assert await store.delete_many([key]) == [key]
        await store.close()

    def _run(self, sql: str) -> None:
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(sql.encode())


@pytest.fixture
def place(
    postgres_server: EmbeddedPostgres, cloud_bucket: CloudBucket, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """It is formatted."""
    monkeypatch.setenv("PATH", f"{PROGRAMS}:{os.environ['PATH']}")
    found = Place(postgres_server, cloud_bucket)
    assert main(["storage", "format", "-t", CLUSTER, *found.flags()]) == 0
    yield found
    found.lose()


def values(bootstrap: str) -> list[int]:
    return sorted(int(message.value() or b"") for message in KafkaClients(bootstrap).read("t", RECORDS, 4))


def doctor(flags: Sequence[str], capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str, str]]:
    """Level, what was found and what to do, by area and check."""
    capsys.readouterr()
    main(["doctor", "--json", *flags])
    found = json.loads(capsys.readouterr().out)
    return {f"{each['area']} {each['check']}": (each["level"], each["found"], each["to_do"]) for each in found}


@pytest.mark.requirement("X15", "C11.1")
def test_from_format_to_restore(place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storage", "info", *place.flags()]) == 0
    assert "Metastore and bucket belong to one cluster." in capsys.readouterr().out
    assert main(["storage", "format", "-t", CLUSTER, *place.flags()]) == 1
    assert "is already formatted" in capsys.readouterr().err
    with place.agent() as agent:
        KafkaClients(agent.kafka).create("t", 4)
        KafkaClients(agent.kafka).produce("t", range(RECORDS), 4)
        assert values(agent.kafka) == list(range(RECORDS))
        seen = doctor(place.flags(), capsys)
        bad = {check for check, (level, _, _) in seen.items() if level == "bad"}
        assert bad <= {"postgres durability"}, "fsync is off"
        assert seen["bucket cluster"][0] == "ok"
    assert main(["audit", "--deep", *place.flags()]) == 0
    dump = tmp_path / "headrace.dump"
    assert main(["backup", *place.flags(), "--to", str(dump)]) == 0
    assert main(["backup", *place.flags()]) == 0
    assert "kind=dump" in capsys.readouterr().out

    place.lose()
    place.create()
    subprocess.run([PROGRAMS / "pg_restore", "--no-owner", "--dbname", place.url, str(dump)], check=True)
    assert main(["migrate", "--restored", *place.flags()]) == 0
    assert main(["audit", "--resume-janitor", "-y", *place.flags()]) == 0
    with place.agent() as agent:
        assert values(agent.kafka) == list(range(RECORDS))
    capsys.readouterr()

    first, *_ = asyncio.run(place.objects())
    assert main(["dump-log", "--files", f"{place.bucket.url}/{first}", *place.bucket.flags]) == 0
    assert "baseOffset: 0 " in capsys.readouterr().out
    asyncio.run(place.delete(first))
    assert main(["audit", *place.flags()]) == 1
    assert f"violation: missing file={first.rpartition('/')[2]}" in capsys.readouterr().out


@pytest.mark.requirement("X15", "C12")
def test_a_wrong_place_is_named_at_the_start_and_by_the_doctor(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = place.elsewhere("mistyped")
    with place.agent() as agent:
        KafkaClients(agent.kafka).create("t", 4)
        KafkaClients(agent.kafka).produce("t", range(RECORDS), 4)
        for said in (place.refusal(wrong), doctor(place.flags(wrong), capsys)["bucket cluster"][2]):
            assert f"correct bucket: the metastore has its files in {place.bucket.url}" in said or (
                f"metastore={place.bucket.url} bucket={wrong.url}: correct bucket" in said
            )
        assert main(["storage", "format", "-t", CLUSTER, "--ignore-formatted", *place.flags(wrong)]) == 1
        assert place.bucket.url in capsys.readouterr().err
        assert main(["storage", "adopt-bucket", *place.flags(wrong)]) == 1
        assert values(agent.kafka) == list(range(RECORDS))

    absent = CloudBucket(
        {
            **place.bucket.settings,
            "bucket": place.bucket.url.replace("headrace-contract", "headrace-absent"),
        }
    )
    to_do = doctor(place.flags(absent), capsys)["bucket put"][2]
    assert to_do.startswith("correct bucket")
    assert main(["storage", "info", *place.flags(absent)]) == 1
    assert "check=" in capsys.readouterr().err


@pytest.mark.requirement("X15")
def test_another_clusters_place_is_refused(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    other = Place(place.server, place.bucket)
    try:
        assert main(["storage", "format", "-t", "mWlrs4cHQ6aL2nSPlvUd6g", *other.flags()]) == 1
        assert f"bucket belongs to another cluster: wanted=mWlrs4cHQ6aL2nSPlvUd6g found={CLUSTER}" in (
            capsys.readouterr().err
        )
        fresh = other.elsewhere("other")
        assert main(["storage", "format", "-t", "mWlrs4cHQ6aL2nSPlvUd6g", *other.flags(fresh)]) == 0
        assert f"different clusters: bucket={CLUSTER} metastore=mWlrs4cHQ6aL2nSPlvUd6g" in other.refusal(place.bucket)
        seen = doctor(other.flags(place.bucket), capsys)
        assert seen["cluster one cluster"][0] == seen["cluster bucket"][0] == "bad"
        assert f"the metastore has its files in {fresh.url}" in seen["cluster bucket"][1]
    finally:
        other.lose()


@pytest.mark.slow
@pytest.mark.requirement("X15")
@pytest.mark.parametrize(("denied", "operation"), [("read", "get"), ("write", "put"), ("list", "list")])
def test_a_right_that_is_missing_is_named_at_the_start(
    denied: str,
    operation: str,
    postgres_server: EmbeddedPostgres,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Azurite checks the identity, the other emulator none. Only the doctor looks for the right to delete."""
    place = Place(postgres_server, bucket_of("azure", request))
    try:
        assert main(["storage", "format", "-t", CLUSTER, *place.flags()]) == 0
        rights = {right: right != denied for right in ("read", "write", "list", "delete")}
        sas = generate_account_sas(
            ACCOUNT, KEY, ResourceTypes(service=True, container=True, object=True), AccountSasPermissions(**rights),
            datetime.now(UTC) + timedelta(hours=1),
        )  # fmt: skip
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas)
        said = place.refusal(place.bucket)
    finally:
        place.lose()
    assert f"store refused: operation={operation} bucket={ACCOUNT}/{CONTAINER}" in said
    assert "check=AZURE_STORAGE_SAS_TOKEN: it needs the rights to read, write, list and delete" in said
    assert sas.partition("sig=")[2] not in said
