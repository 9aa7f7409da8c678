"""`headrace storage`: formatting, looking, and what is refused."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from headrace.agent.access.sasl.passwords import Credentials
from headrace.cli.main import main
from headrace.cli.process.open_process import open_agent
from headrace.config.cluster_values import proposed
from headrace.config.settings import Settings
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.metastore.log.records import decode_record
from headrace.metastore.log.scram_keys import SealedKeys
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.formatted import formatted_cluster_id
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.sealing import Sealing
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import (
    OBJECT_KEY,
    check_cluster_id,
    parse,
    random_cluster_id,
    read_cluster_id,
    render,
    write_cluster_id,
)
from headrace.storage.errors import AlreadyExistsError, CorruptError, InvalidError
from headrace.storage.objects.memory import MemoryStore
from tests.agent_process import ended_agent

SEEDS_OWN = "3Db5QLSqSZieL3rJBUUegA"
ANOTHER = "8XUwXa9qSyi9tSOquGtauQ"
NOT_FORMATTED = "bucket is not formatted: run `headrace storage format --ignore-formatted --cluster-id {cluster_id}`"
TWO_CLUSTERS = f"bucket={ANOTHER} metastore={{cluster_id}}: correct metastore.url or bucket; nothing was changed"


@pytest.fixture
def places(postgres_server: EmbeddedPostgres, tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """Flags that name an empty database and an empty bucket."""
    name = f"unformatted_{abs(hash(request.node.nodeid))}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    (tmp_path / "bucket").mkdir()
    return ["--metastore-url", postgres_server.url(name), "--bucket", (tmp_path / "bucket").as_uri()]


def _settings(places: list[str]) -> Settings:
    return Settings(metastore_url=places[1], bucket=places[3], listeners="PLAINTEXT://127.0.0.1:0", http_port=0)


@pytest.mark.requirement("C11.1", "C12")
def test_format_writes_the_id_to_both_parts_and_info_shows_it(
    places: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["storage", "info", *places]) == 1
    assert "Not formatted: metastore" in capsys.readouterr().out
    assert main(["storage", "format", "-t", SEEDS_OWN, *places]) == 0
    assert formatted_cluster_id(places[1]) == SEEDS_OWN
    capsys.readouterr()
    assert main(["storage", "info", *places]) == 0
    assert capsys.readouterr().out.count(f"MetaProperties(clusterId={SEEDS_OWN})") == 2


@pytest.mark.requirement("C11.1")
def test_settings_may_come_from_a_file(places: list[str], tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"metastore.url={places[1]}\nbucket={places[3]}\n")
    assert main(["storage", "format", "-c", str(file), "-t", SEEDS_OWN]) == 0
    assert main(["storage", "info", "-c", str(file)]) == 0


@pytest.mark.requirement("X10")
@pytest.mark.parametrize("command", [("storage", "format", "-t", SEEDS_OWN), ("migrate",)], ids=["format", "migrate"])
@pytest.mark.parametrize("from_file", [True, False], ids=["with a file", "without"])
def test_a_new_cluster_gets_the_values_of_the_file_and_no_defaults(
    command: tuple[str, ...], places: list[str], tmp_path: Path, *, from_file: bool
) -> None:
    """Without a file the defaults are not an operator's words: the first controller asks the running processes."""
    file = tmp_path / "server.properties"
    file.write_text(f"metastore.url={places[1]}\nbucket={places[3]}\nlog.retention.hours=720\n")
    assert main([*command, *(["-c", str(file)] if from_file else places)]) == 0
    wanted = proposed(Settings(log_retention_hours=720)) if from_file else {}
    assert _values(places) == wanted
    file.write_text(f"metastore.url={places[1]}\nbucket={places[3]}\nlog.retention.hours=5\n")
    assert main(["migrate", "-c", str(file)]) == 0
    assert _values(places) == wanted, "the cluster is not new any more"


def _values(places: list[str]) -> dict[str, str]:
    """The cluster's settings: as SQL functions see them, and as the metadata log says."""
    with psycopg.connect(places[1]) as connection:
        seen = dict(connection.execute("SELECT name, value FROM configs").fetchall())
        log = [decode_record(data) for (data,) in connection.execute("SELECT record FROM metadata_log ORDER BY 1")]
    assert seen == {record.name: record.value for record in log if isinstance(record, ConfigRecord)}
    return seen


@pytest.mark.requirement("C11.1", "C12")
def test_formatting_again_fails_unless_told_to_skip(places: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storage", "format", "-t", SEEDS_OWN, *places]) == 0
    assert main(["storage", "format", "-t", SEEDS_OWN, *places]) == 1
    assert "already formatted" in capsys.readouterr().err
    assert main(["storage", "format", "-g", "-t", SEEDS_OWN, *places]) == 0
    assert main(["storage", "format", "-g", "-t", ANOTHER, *places]) == 1
    assert f"belongs to another cluster: wanted={ANOTHER} found={SEEDS_OWN}" in capsys.readouterr().err
    assert formatted_cluster_id(places[1]) == SEEDS_OWN


@pytest.mark.requirement("C12")
def test_a_migrated_database_gets_its_bucket_with_ignore_formatted(places: list[str]) -> None:
    assert main(["migrate", *places[:2]]) == 0
    cluster_id = formatted_cluster_id(places[1])
    assert cluster_id is not None
    assert main(["storage", "info", *places]) == 1
    assert main(["storage", "format", "-g", "-t", cluster_id, *places]) == 0
    assert main(["storage", "info", *places]) == 0


@pytest.mark.parametrize("text", ["", "x", SEEDS_OWN + "==", SEEDS_OWN[:-1] + "!", "A" * 22])
def test_a_bad_cluster_id_is_refused_before_anything_is_made(text: str, places: list[str]) -> None:
    assert main(["storage", "format", f"--cluster-id={text}", *places]) == 1
    assert formatted_cluster_id(places[1]) is None


@pytest.mark.requirement("C11.1")
def test_random_uuid_prints_one_that_format_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storage", "random-uuid"]) == 0
    printed = capsys.readouterr().out.strip()
    assert check_cluster_id(printed) == printed


def test_random_ids_never_look_like_a_flag() -> None:
    rng = random.Random(7)
    drawn = [random_cluster_id(rng) for _ in range(500)]
    assert not [cluster_id for cluster_id in drawn if cluster_id.startswith("-")]
    assert len(set(drawn)) == 500


@pytest.mark.requirement("C12")
async def test_an_agent_refuses_storage_that_is_not_formatted_or_anothers(places: list[str]) -> None:
    assert main_in_thread(["migrate", *places[:2]]) == 0
    process, _ = await open_agent(_settings(places))
    try:
        with pytest.raises(InvalidError, match=r"bucket is not formatted: run `headrace storage format .*--cluster-id"):
            await process.require_formatted_storage()
        await process._store.put(OBJECT_KEY, render(ANOTHER))
        with pytest.raises(InvalidError, match=f"different clusters: bucket={ANOTHER}"):
            await process.require_formatted_storage()
    finally:
        await process.stop()


@pytest.mark.requirement("C12")
def test_an_agent_on_a_database_without_a_cluster_says_what_to_run(
    places: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["agent", "--listeners", "PLAINTEXT://127.0.0.1:0", "--http-port", "0", *places]) == 1
    assert "headrace migrate" in capsys.readouterr().err


@pytest.mark.requirement("C12")
async def test_the_buckets_part_is_meta_properties_version_1_and_is_never_replaced() -> None:
    store = MemoryStore(SystemClock())
    assert await read_cluster_id(store) is None
    await write_cluster_id(store, SEEDS_OWN)
    assert await store.get(OBJECT_KEY) == b"#\ncluster.id=3Db5QLSqSZieL3rJBUUegA\nversion=1\n"
    await write_cluster_id(store, SEEDS_OWN)
    with pytest.raises(AlreadyExistsError, match="another cluster"):
        await write_cluster_id(store, ANOTHER)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"version=0\ncluster.id=1", b"version=1\n", b"cluster.id=short\nversion=1\n"]
)
def test_a_damaged_object_is_no_cluster(data: bytes) -> None:
    with pytest.raises(CorruptError):
        parse(data)


def main_in_thread(argv: list[str]) -> int:
    """`main` runs event loops, which a running loop does not allow in its thread."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(main, argv).result()


@pytest.mark.requirement("C12")
@pytest.mark.parametrize(
    ("command", "stored", "said"),
    [
        ("agent", None, NOT_FORMATTED),
        ("agent", ANOTHER, TWO_CLUSTERS),
        pytest.param("compactor", ANOTHER, TWO_CLUSTERS, marks=pytest.mark.slow),
        pytest.param("compactor", None, NOT_FORMATTED, marks=pytest.mark.slow),
    ],
)
def test_a_process_refuses_parts_that_do_not_belong_together_and_says_what_to_do(
    command: str, stored: str | None, said: str, places: list[str]
) -> None:
    """Formatted as one cluster; then the bucket loses its id, or has another one. Nothing is changed by the attempt."""
    assert main(["storage", "format", "-t", SEEDS_OWN, *places]) == 0
    file = Path(places[3].removeprefix("file://")) / OBJECT_KEY
    assert file.read_bytes() == render(SEEDS_OWN)
    file.unlink()
    if stored is not None:
        file.write_bytes(render(stored))
    ports = ["--http-port", "0", *(["--listeners", "PLAINTEXT://127.0.0.1:0"] if command == "agent" else [])]
    process = [sys.executable, "-m", "headrace.cli.main", command, *ports, *places]
    ended = (
        ended_agent([*ports, *places])
        if command == "agent"
        else subprocess.run(process, capture_output=True, text=True, timeout=300, check=False)
    )
    assert ended.returncode == 1
    assert said.format(cluster_id=SEEDS_OWN) in ended.stderr
    assert file.exists() == (stored is not None)
    assert formatted_cluster_id(places[1]) == SEEDS_OWN


@pytest.mark.requirement("C12")
def test_kafkas_own_meta_properties_are_read_and_other_versions_are_not() -> None:
    """KIP-631's example. Version 0 has a hexadecimal id or none; a node.id names no part that all nodes share."""
    example = f"#\n#Tue Dec 01 10:08:08 PST 2020\ncluster.id={SEEDS_OWN}\nversion=1\nnode.id=0\n"
    assert parse(example.encode()) == SEEDS_OWN
    for version in ("0", "2", ""):
        with pytest.raises(CorruptError, match="unknown version"):
            parse(example.replace("version=1", f"version={version}").encode())


@pytest.mark.requirement("C12")
@pytest.mark.parametrize("command", ["agent", "compactor"])
def test_a_process_on_unformatted_storage_says_what_to_run(
    command: str, postgres_server: EmbeddedPostgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(postgres_server.url(), autocommit=True) as raw:
        name = f"never_formatted_{command}"
        raw.execute(f"CREATE DATABASE {name}".encode())
    flags = ["--metastore-url", postgres_server.url(name), "--bucket", tmp_path.as_uri(), "--http-port", "0"]
    assert main([command, *flags]) == 1
    assert "headrace storage format" in capsys.readouterr().err


@pytest.mark.requirement("X2")
async def test_a_new_cluster_has_its_first_users(
    places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A login with the password works; the command can be repeated, and does not change a user."""
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    users = [f"SCRAM-SHA-{bits}=[name=admin,password-file={secret}]" for bits in (256, 512)]
    flags = [part for user in users for part in ("--add-scram", user)]
    assert await asyncio.to_thread(main, ["storage", "format", "-t", SEEDS_OWN, *places, *flags]) == 0
    assert "Adding user admin" in capsys.readouterr().out
    image = await _image(places)
    credentials = Credentials(
        lambda: image, lambda: None, SystemClock(), b"pepper", SealedKeys(Sealing(None), "cluster")
    )
    assert await credentials.fitting("admin", "open sesame") is not None
    assert await credentials.fitting("admin", "open sesame\n") is None
    assert len(image.scram_credentials["admin"]) == 2
    secret.write_text("another")
    assert await asyncio.to_thread(main, ["storage", "format", "-g", "-t", SEEDS_OWN, *places, *flags]) == 0
    assert "Skipping user admin" in capsys.readouterr().out
    assert (await _image(places)).scram_credentials == image.scram_credentials


async def _image(places: list[str]) -> MetadataImage:
    metastore = await PostgresMetastore.open(places[1], Settings(metastore_url=places[1]))
    try:
        return await load_image(metastore.cluster)
    finally:
        await metastore.close()


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("admin", "not of the form SCRAM-SHA-512="),
        ("SCRAM-SHA-1=[name=a,password-file=x]", "not of the form"),
        ("SCRAM-SHA-512=[name=a,password=x]", "arguments are no place for a password"),
        ("SCRAM-SHA-512=[name=a,password-file=/nowhere]", "cannot read: /nowhere"),
        ("SCRAM-SHA-512=[name=a,password-file=/dev/null]", "empty password"),
        ("SCRAM-SHA-512=[name=a,password-file=x,iterations=1]", "not between 4096 and 16384: 1"),
        ("SCRAM-SHA-512=[name=,password-file=x]", "not of the form"),
    ],
)
def test_first_users_that_cannot_be_added_leave_everything_unformatted(
    user: str, reason: str, places: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["storage", "format", "-t", SEEDS_OWN, *places, "--add-scram", user]) == 1
    assert reason in capsys.readouterr().err
    assert formatted_cluster_id(places[1]) is None
