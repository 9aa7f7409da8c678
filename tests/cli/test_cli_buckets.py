"""Another bucket is not the metastore's: a mistyped prefix, a copy, a restored one; and what the errors say to do.

Real agents and a real Postgres; buckets are directories.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.cli import storage as storage_command
from headrace.cli.main import main
from headrace.config.settings import Settings
from headrace.metastore.api.life import KnownBucket
from headrace.metastore.life import own_bucket
from headrace.metastore.life.own_bucket import require_bucket, require_files
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.formatted import formatted_cluster
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.bucket_properties import OBJECT_KEY as BUCKET_ID
from headrace.storage.bucket_properties import parse, render
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import OBJECT_KEY as CLUSTER_ID
from headrace.storage.errors import InvalidError, UnavailableError
from headrace.storage.objects.directory import DirectoryStore
from tests.agent_process import AgentUnderTest, ended_agent
from tests.kafka_clients import KafkaClients

CLUSTER = "3Db5QLSqSZieL3rJBUUegA"
RECORDS = 20

pytestmark = pytest.mark.requirement("C11.1", "C12")


class Buckets:
    """A cluster that was formatted for the directory `right`, and other directories."""

    def __init__(self, url: str, place: Path) -> None:
        self.url, self.place = url, place

    def flags(self, bucket: str) -> list[str]:
        return ["--metastore-url", self.url, "--bucket", self.address(bucket)]

    def address(self, bucket: str) -> str:
        return (self.place / bucket).as_uri()

    def format(self, bucket: str) -> int:
        return main(["storage", "format", "--ignore-formatted", "--cluster-id", CLUSTER, *self.flags(bucket)])

    def adopt(self, bucket: str, *more: str) -> int:
        return main(["storage", "adopt-bucket", *more, *self.flags(bucket)])

    def agent(self, bucket: str) -> AgentUnderTest:
        return AgentUnderTest({"metastore.url": self.url, "bucket": self.address(bucket), "log.level": "error"})

    def refusal(self, bucket: str) -> str:
        """Return what an agent with this bucket says before it ends."""
        ended = ended_agent(
            [*self.flags(bucket), "--listeners", "PLAINTEXT://127.0.0.1:0", "--http-port", "0", "--log-level", "error"]
        )
        assert ended.returncode == 1
        return ended.stderr

    async def require(self, bucket: str) -> None:
        """Compare as each process does at its start."""
        settings = Settings(metastore_url=self.url, metastore_pool_size=1)
        metastore = await PostgresMetastore.open(self.url, settings)
        try:
            store = DirectoryStore(self.place / bucket, SystemClock())
            await require_bucket(metastore.life, store, self.address(bucket))
            await require_files(metastore.life, store)
        finally:
            await metastore.close()

    def objects(self, bucket: str) -> set[str]:
        place = self.place / bucket
        return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}

    def known(self) -> KnownBucket | None:
        found = formatted_cluster(self.url)
        assert found is not None
        return found.bucket

    def run(self, sql: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.encode())


@pytest.fixture
def buckets(postgres_server: EmbeddedPostgres, tmp_path: Path) -> Iterator[Buckets]:
    name = f"buckets_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        found = Buckets(postgres_server.url(name), tmp_path)
        assert main(["storage", "format", "-t", CLUSTER, *found.flags("right")]) == 0
        yield found
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def produce(bootstrap: str) -> None:
    clients = KafkaClients(bootstrap)
    clients.create("t")
    clients.produce("t", range(RECORDS))


def assert_readable(bootstrap: str) -> None:
    """Every record that was acknowledged."""
    found = [int(message.value() or b"") for message in KafkaClients(bootstrap).read("t", RECORDS)]
    assert found == list(range(RECORDS))


@pytest.mark.slow
def test_a_mistyped_bucket_of_one_agent_is_refused_and_no_command_makes_it_a_member(
    buckets: Buckets, capfd: pytest.CaptureFixture[str]
) -> None:
    with buckets.agent("right") as agent:
        produce(agent.kafka)
        said = buckets.refusal("wrong")
        assert f"metastore={buckets.address('right')} bucket={buckets.address('wrong')}: correct bucket" in said
        assert "storage format" not in said
        assert main(["doctor", *buckets.flags("wrong")]) == 1
        assert f"correct bucket: the metastore has its files in {buckets.address('right')}" in capfd.readouterr().out
        assert main(["storage", "info", *buckets.flags("wrong")]) == 1
        assert "storage format" not in capfd.readouterr().out
        before = buckets.known()
        assert buckets.format("wrong") == 1, "what the error named until now"
        assert buckets.address("right") in capfd.readouterr().err
        for command in re.findall(r"`headrace storage ([a-z-]+)[^`]*`", said):
            assert main(["storage", command, *buckets.flags("wrong")]) == 1
        assert buckets.adopt("wrong", "--force") == 1
        assert {key for key in buckets.objects("wrong") if not key.startswith("doctor/")} == set()
        assert buckets.known() == before
        buckets.refusal("wrong")
        assert_readable(agent.kafka)


@pytest.mark.slow
def test_a_copy_is_refused_until_it_is_adopted_whole(buckets: Buckets, capfd: pytest.CaptureFixture[str]) -> None:
    with buckets.agent("right") as agent:
        produce(agent.kafka)
        shutil.copytree(buckets.place / "right", buckets.place / "copy")
        said = buckets.refusal("copy")
        assert f"metastore={buckets.address('right')} bucket={buckets.address('copy')}" in said
        assert "`headrace storage adopt-bucket`" in said
        assert buckets.format("copy") == 1
        capfd.readouterr()
        assert buckets.adopt("copy") == 1
        assert "processes of the cluster are running" in capfd.readouterr().err
        assert buckets.adopt("right") == 0
        assert "is the metastore's bucket already" in capfd.readouterr().out
    (segment,) = [key for key in buckets.objects("copy") if key.startswith("segments/")]
    (buckets.place / "copy" / segment).rename(buckets.place / "kept")
    assert buckets.adopt("copy") == 1
    out = capfd.readouterr().out
    assert f"missing: file={segment.rpartition('/')[2]}" in out
    assert "nothing was changed" in out
    (buckets.place / "kept").rename(buckets.place / "copy" / segment)
    original = buckets.known()
    assert buckets.adopt("copy") == 0
    adopted = buckets.known()
    assert original is not None
    assert adopted is not None
    assert adopted.address == buckets.address("copy")
    assert adopted.bucket_id != original.bucket_id, "or a process that still runs on the original would not notice"
    assert "correct bucket" in buckets.refusal("right")
    with buckets.agent("copy") as agent:
        assert_readable(agent.kafka)


@pytest.mark.slow
def test_a_bucket_that_was_restored_in_its_place_is_refused(
    buckets: Buckets, capfd: pytest.CaptureFixture[str]
) -> None:
    """It has the id, the address and every older object. So does an empty directory that was not mounted lack them."""
    with buckets.agent("right") as agent:
        shutil.copytree(buckets.place / "right", buckets.place / "earlier")
        produce(agent.kafka)
    shutil.move(buckets.place / "right", buckets.place / "newer")
    (buckets.place / "right").mkdir()
    assert buckets.format("right") == 1, "an empty mount point is no half-finished format"
    assert "is it mounted? correct bucket; nothing was changed" in capfd.readouterr().err
    assert buckets.objects("right") == set()
    shutil.rmtree(buckets.place / "right")
    shutil.copytree(buckets.place / "earlier", buckets.place / "right")
    assert "the bucket lacks the newest files that the metastore names, as segments/" in buckets.refusal("right")
    assert buckets.adopt("right") == 0, "it is the one that is known; agents say what it lacks"
    assert buckets.adopt("right", "--force") == 0
    assert "files that the metastore names: 1, missing or damaged: 1" in capfd.readouterr().out
    shutil.rmtree(buckets.place / "right")
    shutil.move(buckets.place / "newer", buckets.place / "right")
    assert "its id is not" in buckets.refusal("right"), "the restored one was adopted"
    assert buckets.adopt("right") == 0
    with buckets.agent("right") as agent:
        assert_readable(agent.kafka)


def test_each_process_compares_id_and_address_at_its_start(
    buckets: Buckets, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same as the tests with agents, for each edit."""
    asyncio.run(buckets.require("right"))
    before, known = buckets.objects("right"), buckets.known()
    (buckets.place / "wrong").mkdir()
    shutil.copytree(buckets.place / "right", buckets.place / "copy")
    for bucket in ("wrong", "copy"):
        with pytest.raises(InvalidError, match="correct bucket; nothing was changed") as refused:
            asyncio.run(buckets.require(bucket))
        assert buckets.address("right") in str(refused.value)
        assert "storage format" not in str(refused.value)
        assert buckets.format(bucket) == 1
    assert buckets.objects("wrong") == set()
    (buckets.place / "right" / BUCKET_ID).write_bytes(render(uuid.UUID(int=1)))
    with pytest.raises(InvalidError, match="its id is not"):
        asyncio.run(buckets.require("right"))
    assert buckets.adopt("wrong") == 1
    assert "is not a copy of the metastore's" in capsys.readouterr().err
    assert (buckets.objects("right"), buckets.known()) == (before, known)
    assert buckets.adopt("copy") == 0
    asyncio.run(buckets.require("copy"))
    with pytest.raises(InvalidError, match="correct bucket"):
        asyncio.run(buckets.require("right"))


@pytest.mark.parametrize("dies_before", [pytest.param("ensure_bucket_id", marks=pytest.mark.slow), "write_cluster_id"])
def test_a_half_finished_format_is_completed_for_its_own_bucket_only(
    dies_before: str, postgres_server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"half_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    buckets = Buckets(postgres_server.url(name), tmp_path)

    async def killed(*arguments: object) -> uuid.UUID:
        raise UnavailableError("killed")

    with monkeypatch.context() as patch:
        module = own_bucket if dies_before == "ensure_bucket_id" else storage_command
        patch.setattr(module, dies_before, killed)
        assert main(["storage", "format", "-t", CLUSTER, *buckets.flags("right")]) == 1
    assert CLUSTER_ID not in buckets.objects("right")
    with pytest.raises(InvalidError, match=f"`headrace storage format --ignore-formatted --cluster-id {CLUSTER}`"):
        asyncio.run(buckets.require("right"))
    if dies_before == "write_cluster_id":
        assert buckets.format("wrong") == 1
        assert buckets.objects("wrong") == set()
    assert buckets.format("right") == 0
    assert buckets.known() == KnownBucket(
        parse((tmp_path / "right" / BUCKET_ID).read_bytes()), buckets.address("right")
    )
    assert buckets.format("right") == 0, "a repetition finds nothing to do"
    assert buckets.format("wrong") == 1


def as_of_the_release_before(buckets: Buckets, bucket: str) -> None:
    buckets.run("UPDATE cluster SET bucket_id = NULL, bucket_address = NULL")
    (buckets.place / bucket / BUCKET_ID).unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.requirement("X9")
def test_an_old_cluster_learns_its_bucket_and_not_a_wrong_prefix(
    buckets: Buckets, capfd: pytest.CaptureFixture[str]
) -> None:
    """The release before formatted the wrong prefix, too, as its error said."""
    with buckets.agent("right") as agent:
        produce(agent.kafka)
    as_of_the_release_before(buckets, "right")
    capfd.readouterr()
    assert buckets.format("empty") == 1
    assert "the bucket lacks files that the metastore names" in capfd.readouterr().err
    (buckets.place / "wrong").mkdir()
    shutil.copy(buckets.place / "right" / CLUSTER_ID, buckets.place / "wrong")
    assert "the bucket lacks the newest files" in buckets.refusal("wrong")
    assert buckets.objects("wrong") == {CLUSTER_ID}
    assert buckets.known() is None
    with buckets.agent("right") as agent:
        known = buckets.known()
        assert known is not None
        assert known.address == buckets.address("right")
        assert_readable(agent.kafka)
    assert "correct bucket" in buckets.refusal("wrong")


@pytest.mark.slow
def test_a_metastore_in_use_without_a_file_gets_no_other_bucket(
    buckets: Buckets, capfd: pytest.CaptureFixture[str]
) -> None:
    with buckets.agent("right"):
        as_of_the_release_before(buckets, "right")
        assert buckets.format("wrong") == 1
        assert "does not know its bucket yet: correct bucket" in capfd.readouterr().err
        assert main(["doctor", *buckets.flags("wrong")]) == 1
        assert "correct bucket: the metastore is in use" in capfd.readouterr().out
        assert {key for key in buckets.objects("wrong") if not key.startswith("doctor/")} == set()
