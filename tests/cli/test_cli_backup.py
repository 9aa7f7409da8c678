"""`headrace backup`: a dump that can be restored, records of other backups, and what it refuses."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import uuid
from pathlib import Path

import psycopg
import pytest

from headrace.cli.main import main
from headrace.config.settings import Settings
from headrace.metastore.backups import BackupKind, BackupRecord, read_backup, record_backup
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.formatted import formatted_cluster_id
from headrace.metastore.postgres.installation import find_installation
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import OBJECT_KEY as CLUSTER_ID
from headrace.storage.cluster_properties import render, write_cluster_id
from headrace.storage.objects.directory import DirectoryStore

PROGRAMS = find_installation().bin_dir
HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path: Path, metastore_url: str) -> DirectoryStore:
    """The bucket of the metastore's cluster."""
    (tmp_path / "bucket").mkdir()
    store = DirectoryStore(tmp_path / "bucket", SystemClock())
    asyncio.run(write_cluster_id(store, str(formatted_cluster_id(metastore_url))))
    return store


@pytest.fixture
def flags(metastore_url: str, tmp_path: Path, store: DirectoryStore) -> list[str]:
    return ["--metastore-url", metastore_url, "--bucket", (tmp_path / "bucket").as_uri()]


def test_a_dump_is_recorded_and_can_be_restored(
    flags: list[str],
    store: DirectoryStore,
    postgres_server: EmbeddedPostgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", f"{PROGRAMS}:{os.environ['PATH']}")
    assert main(["backup", *flags]) == 1, "there is none yet"
    assert capsys.readouterr().out == "no backup is recorded\n"
    file = tmp_path / "headrace.dump"
    before_ms = SystemClock().wall_ms()
    assert main(["backup", *flags, "--to", str(file)]) == 0
    record = asyncio.run(read_backup(store))
    assert record is not None
    assert (record.kind, record.place) == (BackupKind.DUMP, str(file))
    assert before_ms <= record.began_ms <= SystemClock().wall_ms()
    assert not file.with_name("headrace.dump.part").exists()
    restored = f"restored_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {restored} ENCODING 'UTF8' TEMPLATE template0")
    url = postgres_server.url(restored)
    subprocess.run([PROGRAMS / "pg_restore", "--no-owner", "--dbname", url, str(file)], check=True)
    assert formatted_cluster_id(url) == formatted_cluster_id(flags[1])

    async def opened() -> int:
        metastore = await PostgresMetastore.open(url, Settings(metastore_url=url))
        head = await metastore.cluster.metadata_head()
        await metastore.close()
        return head

    assert asyncio.run(opened()) > 0


def test_only_this_user_reads_a_dump_and_sees_its_passwords(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds with any umask, and with a file of a killed run. The arguments of a process are public."""
    programs, seen = tmp_path / "bin", tmp_path / "seen"
    programs.mkdir()
    fake = programs / "pg_dump"
    fake.write_text(
        "#!/bin/sh\n"
        f'cat /proc/$$/cmdline /proc/$$/environ > {seen}; cat "$PGSERVICEFILE" > {seen}.service\n'
        f'stat -c %a "$PGSERVICEFILE" > {seen}.mode\n'
        'while [ $# -gt 0 ]; do [ "$1" = --file ] && echo dump > "$2"; shift; done\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    file = tmp_path / "headrace.dump"
    left = file.with_name("headrace.dump.part")
    left.write_text("half")
    left.chmod(0o644)
    address = "postgresql://me:planted-of-role@127.0.0.1:1/x?sslmode=disable&sslpassword=planted-of-key"
    before = os.umask(0o022)
    try:
        assert main(["backup", "--metastore-url", address, *flags[2:], "--to", str(file)]) == 0
    finally:
        os.umask(before)
    assert stat.filemode(file.stat().st_mode) == "-rw-------"
    assert b"planted" not in seen.read_bytes()
    service = Path(f"{seen}.service").read_text()
    assert service == "[headrace]\npassword=planted-of-role\nsslpassword=planted-of-key\n"
    assert Path(f"{seen}.mode").read_text() == "600\n"
    assert "planted" not in "".join(capsys.readouterr())


def test_a_dump_that_fails_is_no_backup(
    flags: list[str],
    store: DirectoryStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", f"{PROGRAMS}:{os.environ['PATH']}")
    file = tmp_path / "headrace.dump"
    file.write_text("the dump of yesterday")
    wrong = ["--metastore-url", "postgresql://headrace:open-sesame@127.0.0.1:1/x", *flags[2:]]
    assert main(["backup", *wrong, "--to", str(file)]) == 1
    told = capsys.readouterr().err
    assert "pg_dump failed" in told
    assert "open-sesame" not in told
    assert file.read_text() == "the dump of yesterday"
    assert asyncio.run(read_backup(store)) is None


def test_another_database_is_not_dumped_as_the_metastore(
    flags: list[str], store: DirectoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy on the same server, and a metastore of another cluster."""
    with psycopg.connect(flags[1], autocommit=True) as connection:
        connection.execute("UPDATE cluster SET database_oid = 5")
    assert main(["backup", *flags, "--to", str(tmp_path / "dump")]) == 1
    assert "this database is a copy of the metastore" in capsys.readouterr().err
    with psycopg.connect(flags[1], autocommit=True) as connection:
        connection.execute("UPDATE cluster SET database_oid = NULL")
    asyncio.run(store.put(CLUSTER_ID, render("8XUwXa9qSyi9tSOquGtauQ")))
    assert main(["backup", *flags, "--to", str(tmp_path / "dump")]) == 1
    assert "not the bucket's metastore" in capsys.readouterr().err
    asyncio.run(store.delete_many([CLUSTER_ID]))
    for words in (["--to", str(tmp_path / "dump")], ["--record", "snapshot"]):
        assert main(["backup", *flags, *words]) == 1
        assert "bucket is not formatted: correct bucket" in capsys.readouterr().err
    assert not (tmp_path / "dump").exists()
    assert asyncio.run(read_backup(store)) is None


def test_a_backup_of_another_tool_is_recorded_with_its_time(
    flags: list[str], store: DirectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["backup", *flags, "--record", "snapshot", "--began", "2026-11-27T03:00:00Z", "--place", "snap-1"]
    assert main(words) == 0
    assert "kind=snapshot began=2026-11-27T03:00:00+00:00 place=snap-1" in capsys.readouterr().out
    assert main(["backup", *flags, "--record", "base", "--began", "2026-11-26T03:00:00Z"]) == 0
    assert "a newer backup is recorded already" in capsys.readouterr().out
    record = asyncio.run(read_backup(store))
    assert record is not None
    assert record.kind is BackupKind.SNAPSHOT


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--record", "base", "--began", "yesterday"], "--began: "),
        (["--record", "base", "--began", "2026-11-27T03:00:00"], "no zone"),
        (["--began", "2026-11-27T03:00:00Z"], "--began needs --record"),
    ],
)
def test_what_says_no_clear_time_is_refused(
    words: list[str], told: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backup", *flags, *words]) == 1
    assert told in capsys.readouterr().err


async def test_an_older_record_never_replaces_a_newer_one(store: DirectoryStore) -> None:
    newest = BackupRecord(BackupKind.DUMP, 5 * HOUR_MS)
    assert await record_backup(store, newest)
    assert not await record_backup(store, BackupRecord(BackupKind.DUMP, 4 * HOUR_MS))
    assert await read_backup(store) == newest
    assert await record_backup(store, BackupRecord(BackupKind.BASE, 5 * HOUR_MS))
