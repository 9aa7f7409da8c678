"""`headrace doctor` on set-ups that are broken in one way each: real databases, buckets and addresses."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import uuid
from pathlib import Path
from typing import Any

import aioboto3
import msgspec
import psycopg
import pytest

from headrace.cli.doctor import servers
from headrace.cli.main import main
from headrace.config.free_ports import free_ports
from headrace.config.settings import Settings
from headrace.metastore.api.cluster import SettingReport
from headrace.metastore.backups import KEY, BackupKind, BackupRecord
from headrace.metastore.life.bucket import Position, write_position
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.formatted import formatted_cluster_id
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import OBJECT_KEY, render
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.objects.s3_client import S3Options
from tests.cli.doctor.world import Doctor, on
from tests.fixtures_s3 import BUCKET, aws_credentials
from tests.scripted_http import ScriptedServer, refusing
from tests.torture.small_disk import SmallDisk, why_missing

__all__ = ["aws_credentials"]

ANOTHER_CLUSTER = "8XUwXa9qSyi9tSOquGtauQ"


def test_a_sound_set_up(places: list[str], doctor: Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    found = doctor(*places)
    bad = [check for check, (level, _, _) in found.items() if level == "bad"]
    assert bad == ["postgres durability"], "the tests' server runs without fsync"
    assert {check.split()[0] for check in found} == {"host", "postgres", "bucket", "cluster"}
    assert [
        path.name for path in (Path(places[3].removeprefix("file://")) / "doctor").rglob("*") if path.is_file()
    ] == []
    assert main(["doctor", *places]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["ok", "bucket", "put"] for line in lines)
    assert lines[-1].endswith("1 bad")


def test_a_postgres_that_is_away(places: list[str], doctor: Doctor) -> None:
    (port,) = free_ports(1)
    url = f"postgresql://user:open-sesame@127.0.0.1:{port}/headrace"
    found = doctor("--metastore-url", url, *places[2:])
    assert found["postgres connect"][0] == "bad"
    assert f"127.0.0.1:{port}/headrace" in found["postgres connect"][1]
    assert "open-sesame" not in str(found)
    assert "cluster agents" not in found


def test_a_database_that_is_not_formatted(postgres_server: EmbeddedPostgres, places: list[str], doctor: Doctor) -> None:
    name = f"unformatted_{uuid.uuid4().hex}"
    on(postgres_server.url(), f"CREATE DATABASE {name}")
    found = doctor("--metastore-url", postgres_server.url(name), *places[2:])
    assert found["postgres schema"] == ("bad", "the database is not formatted", "headrace storage format")


def test_a_schema_of_an_older_version(places: list[str], doctor: Doctor) -> None:
    on(places[1], "DELETE FROM schema_migrations WHERE name = (SELECT max(name) FROM schema_migrations)")
    level, message, to_do = doctor(*places)["postgres schema"]
    assert (level, to_do) == ("bad", "headrace migrate")
    assert message.startswith("1 migrations are missing")


def test_a_schema_of_a_newer_version(places: list[str], doctor: Doctor) -> None:
    on(places[1], "INSERT INTO schema_migrations (name, checksum) VALUES ('9999_later', 'x')")
    level, message, _ = doctor(*places)["postgres schema"]
    assert level == "bad"
    assert "newer" in message


def test_a_postgres_that_may_lose_commits(places: list[str], doctor: Doctor) -> None:
    name = places[1].rpartition("/")[2].partition("?")[0]
    on(places[1], f"ALTER DATABASE {name} SET synchronous_commit = off")
    level, message, _ = doctor(*places)["postgres durability"]
    assert level == "bad"
    assert "synchronous_commit=off" in message


def test_a_postgres_without_room_for_another_agent(places: list[str], doctor: Doctor) -> None:
    level, message, to_do = doctor(*places, "--metastore-pool-size", "500")["postgres connections"]
    assert level == "bad"
    assert "a process opens" in message
    assert "max_connections" in (to_do or "")


def test_a_transaction_that_stays_open(places: list[str], doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "TRANSACTION_WARN_S", 0.0)
    with psycopg.connect(places[1]) as connection:
        connection.execute("SELECT 1")
        level, message, _ = doctor(*places)["postgres transactions"]
    assert (level, message.startswith("the longest is open")) == ("warn", True)


def test_a_bucket_that_cannot_be_written(places: list[str], doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    found = doctor(*places[:2], "--bucket", (tmp_path / "file").as_uri())
    (problem,) = [message for check, message in found.items() if check.startswith("bucket")]
    assert problem[0] == "bad"
    assert "not a directory" in problem[1].lower()


def test_a_bucket_that_is_not_formatted(places: list[str], doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    flags = [*places[:2], "--bucket", (tmp_path / "empty").as_uri()]
    to_do = f"headrace storage format --ignore-formatted --cluster-id {formatted_cluster_id(places[1])}"
    assert doctor(*flags)["bucket cluster"] == ("bad", "the bucket is not formatted", to_do)
    on(places[1], f"UPDATE cluster SET bucket_id = '{uuid.UUID(int=1)}', bucket_address = 's3://logs/headrace'")
    found = doctor(*flags)
    assert found["bucket cluster"][2] == "correct bucket: the metastore has its files in s3://logs/headrace"
    level, message, to_do = found["cluster bucket"]
    assert (level, "s3://logs/headrace, and this is file://" in message) == ("bad", True)
    assert "correct bucket; if the files" in str(to_do)


def test_a_bucket_of_another_cluster(places: list[str], doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "bucket" / OBJECT_KEY).write_bytes(render(ANOTHER_CLUSTER))
    level, message, _ = doctor(*places)["cluster one cluster"]
    assert level == "bad"
    assert ANOTHER_CLUSTER in message


async def test_a_bucket_that_deletes_and_keeps_by_itself(moto_url: str, places: list[str]) -> None:
    from headrace.cli.doctor.bucket import examine

    settings = Settings(bucket=f"s3://{BUCKET}/logs", s3_endpoint=moto_url, s3_region="us-east-1", s3_path_style=True)
    sound = {f.check: f.level.value for f in await examine(settings, SystemClock(), _rng())}
    assert (sound["lifecycle rules"], sound["versioning"]) == ("ok", "ok")
    rule = {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 30}}
    elsewhere = {"ID": "other", "Status": "Enabled", "Filter": {"Prefix": "else/"}, "Expiration": {"Days": 1}}
    async with aioboto3.Session().client("s3", endpoint_url=moto_url, region_name="us-east-1") as client:
        await client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        await client.put_bucket_lifecycle_configuration(
            Bucket=BUCKET, LifecycleConfiguration={"Rules": [rule, elsewhere]}
        )
        try:
            broken = {f.check: f for f in await examine(settings, SystemClock(), _rng())}
        finally:
            await client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Suspended"})
            await client.delete_bucket_lifecycle(Bucket=BUCKET)
    assert broken["lifecycle rules"].level.value == "bad"
    assert "tidy" in broken["lifecycle rules"].found
    assert broken["versioning"].level.value == "warn"


async def test_a_store_without_delete_objects(aws_credentials: None) -> None:
    from headrace.cli.doctor.bucket import judge_delete_objects
    from headrace.storage.objects.s3_client import why_no_delete_objects

    steps = [refusing(501, "NotImplemented"), refusing(400, "MissingContentMD5"), refusing(403, "AccessDenied")]
    async with ScriptedServer(steps) as server:
        options = S3Options(bucket="bucket", endpoint=server.url, region="us-east-1", path_style=True)
        refusals = [await why_no_delete_objects(options, "logs/doctor/absent") for _ in range(4)]
    assert ["NotImplemented" in refusals[0], "MissingContentMD5" in refusals[1], refusals[2:]] == [True, True, ["", ""]]
    (finding,) = judge_delete_objects(refusals[0])
    assert (finding.check, finding.level.value) == ("DeleteObjects", "warn")
    assert list(judge_delete_objects("")) == []


def _rng() -> Any:
    import random

    return random.Random(5)


def test_a_metastore_that_went_back(places: list[str], doctor: Doctor) -> None:
    """The bucket says that the server once had more: as after a dump was restored."""
    store = DirectoryStore(Path(places[3].removeprefix("file://")), SystemClock())
    settings = Settings(metastore_url=places[1], bucket=places[3])

    async def begin() -> None:
        metastore = await PostgresMetastore.open(places[1], settings)
        keeper = LifeKeeper(metastore.life, store, SystemClock(), random.Random(1))
        await keeper.check()
        life = await metastore.life.describe_life()
        ahead = msgspec.structs.replace(Position.of(life), wal_bytes=life.wal_bytes + 1_000_000)
        await write_position(store, ahead)
        await metastore.close()

    asyncio.run(begin())
    level, message, to_do = doctor(*places)["cluster life"]
    assert level == "bad"
    assert "agents write nothing: the metastore went back" in message
    assert "migrate --restored" in str(to_do)


def test_a_dump_in_another_database_of_the_server(places: list[str], doctor: Doctor) -> None:
    """The row names the database that it was dumped from."""
    on(places[1], "UPDATE cluster SET database_oid = 5")
    level, message, to_do = doctor(*places)["cluster life"]
    assert (level, "agents write nothing: the metastore went back or was moved" in message) == ("bad", True)
    assert "migrate --restored" in str(to_do)


def test_agents_without_a_compactor(places: list[str], doctor: Doctor) -> None:
    async def report() -> None:
        metastore = await PostgresMetastore.open(places[1], Settings(metastore_url=places[1]))
        await metastore.cluster.report_settings(
            SettingReport(uuid.uuid4(), "host-1", ("broker", "controller"), None, {})
        )
        await metastore.close()

    asyncio.run(report())
    assert doctor(*places)["cluster compactor"][0] == "bad"


def test_work_that_no_worker_takes(places: list[str], doctor: Doctor) -> None:
    assert doctor(*places)["cluster background work"][0] == "ok"
    on(
        places[1],
        "INSERT INTO jobs (kind, key, payload, priority, state, due_at, created_at)"
        " VALUES ('plan', '', '', 0, 0, now() - interval '1 hour', now())",
    )
    level, message, _ = doctor(*places)["cluster background work"]
    assert (level, message.partition(":")[0]) == ("warn", "background work is overdue, kind plan")


def test_a_backup_that_is_recorded_is_judged(places: list[str], doctor: Doctor) -> None:
    assert doctor(*places)["postgres backup"][0] == "warn"
    assert main(["backup", *places, "--record", "dump"]) == 0
    assert doctor(*places)["postgres backup"][0] == "ok"
    store = DirectoryStore(Path(places[3].removeprefix("file://")), SystemClock())
    old = BackupRecord(BackupKind.DUMP, SystemClock().wall_ms() - 26 * 3_600_000)
    asyncio.run(store.put(KEY, msgspec.json.encode(old)))
    level, message, _ = doctor(*places)["postgres backup"]
    assert level == "warn"
    assert message.startswith("a restore would go back 26.0 h, and file.delete.delay.ms is 1.0 h")


def test_a_full_disk_of_postgres(tmp_path: Path, doctor: Doctor) -> None:
    if why_missing():
        pytest.skip("needs mkfs.ext4 and a loop device" if os.geteuid() == 0 else "needs root")
    with tempfile.TemporaryDirectory(prefix="headrace-disk-") as place:
        Path(place).chmod(0o711)  # Postgres runs as another user
        with SmallDisk(Path(place), 192 * 1024**2) as disk, EmbeddedPostgres(disk.path / "server", fsync=False) as url:
            migrate(url)
            flags = ["--metastore-url", url, "--bucket", f"file://{tmp_path}"]
            assert doctor(*flags)["postgres disk"][0] == "ok"
            disk.fill()
            level, message, to_do = doctor(*flags)["postgres disk"]
            disk.free()
    assert (level, to_do) == ("bad", "make room on Postgres' disk")
    assert "No space left on device" in message
