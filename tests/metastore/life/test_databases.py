"""Another database of the metastore's own server is not the metastore: a restored dump, a template copy, not a rename.

Identifier, timeline and WAL position are the server's, so they are the same for all of its databases.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import msgspec
import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.main import main
from headrace.config.settings import Settings
from headrace.metastore.api.life import Server, ServerLife
from headrace.metastore.life import keeper as keeper_module
from headrace.metastore.life import verdict as verdict_module
from headrace.metastore.life.bucket import PREFIX, LifeRecord, newest_life
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.numbers import NO_LIFE
from headrace.metastore.life.verdict import LifeVerdict
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.installation import find_installation
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.memory import MemoryStore
from load.postgres_servers import ask, run
from tests.agent_process import AgentUnderTest, Forked, format_storage
from tests.conftest import Copies
from tests.manual_clock import ManualClock
from tests.metastore.sql_sources import plant
from tests.patch import Patch

pytestmark = pytest.mark.requirement("W1", "X4")
SECONDS_MAX = 120.0
OWN_DATABASE = "SELECT oid::bigint FROM pg_database WHERE datname = current_database()"


class Opened:
    """A process on a database, which writes as long as it may."""

    def __init__(self, metastore: PostgresMetastore, bucket: MemoryStore, seed: int) -> None:
        self.metastore = metastore
        self.keeper = LifeKeeper(metastore.life, bucket, ManualClock(), random.Random(seed))

    async def writes(self) -> bool:
        try:
            await self.metastore.commits.allocate_producer_ids(10)
        except UnavailableError:
            return False
        return True


@asynccontextmanager
async def opened(url: str, bucket: MemoryStore) -> AsyncIterator[Opened]:
    metastore = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
    try:
        yield Opened(metastore, bucket, 1)
    finally:
        await metastore.close()


@contextmanager
def template_copy(url: str) -> Iterator[str]:
    """A second database with everything that this one has; no session is connected to it."""
    place = urlsplit(url)
    name = place.path.removeprefix("/")
    with psycopg.connect(url, dbname="postgres", autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}_copy" TEMPLATE "{name}"'.encode())
        yield urlunsplit(place._replace(path=f"/{name}_copy"))
        admin.execute(f'DROP DATABASE "{name}_copy" WITH (FORCE)'.encode())


async def a_copy_writes_nothing(url: str) -> None:
    """The original continues; the copy is refused by its process, and by its server without a process that compares."""
    bucket = MemoryStore(ManualClock())
    async with opened(url, bucket) as first:
        assert await first.keeper.check() is LifeVerdict.CURRENT
    with template_copy(url) as other:
        async with opened(other, bucket) as copy, opened(url, bucket) as original:
            assert not await copy.writes(), "a process of the release before compares nothing; its server does"
            assert await copy.keeper.check() is LifeVerdict.RESTORED
            assert copy.keeper.life == NO_LIFE
            assert await original.keeper.check() is LifeVerdict.CURRENT
            assert await original.writes()
            assert await copy.keeper.check() is LifeVerdict.RESTORED
            assert await copy.keeper.begin_anew("restored") == 1, "until an operator says so"
            assert await copy.writes()
            assert await original.keeper.check() is LifeVerdict.SUPERSEDED


async def test_a_copy_in_another_database_of_the_server_writes_nothing(metastore_url: str) -> None:
    await a_copy_writes_nothing(metastore_url)


async def test_the_database_is_not_looked_up_by_its_name(metastore_url: str) -> None:
    """A rename keeps the oid. So does a table that is moved to another tablespace."""
    bucket = MemoryStore(ManualClock())
    async with opened(metastore_url, bucket) as process:
        assert await process.keeper.check() is LifeVerdict.CURRENT
        assert (await process.metastore.life.describe_life()).server.database == ask(metastore_url, OWN_DATABASE)[0]
    place = urlsplit(metastore_url)
    name = place.path.removeprefix("/")
    with psycopg.connect(metastore_url, dbname="postgres", autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" RENAME TO "{name}_renamed"'.encode())
        try:
            renamed = urlunsplit(place._replace(path=f"/{name}_renamed"))
            async with opened(renamed, bucket) as process:
                assert await process.keeper.check() is LifeVerdict.CURRENT
                assert await process.writes()
        finally:
            admin.execute(f'ALTER DATABASE "{name}_renamed" RENAME TO "{name}"'.encode())
    assert ask(metastore_url, "SELECT split_part('pg_tblspc/16999/PG_18_202506291/16384/16500', '/', -2)") == ("16384",)


async def as_of_the_release_before(url: str, bucket: MemoryStore) -> None:
    """The row and the bucket as that release leaves them: neither names a database."""
    run(url, "UPDATE cluster SET database_oid = NULL")
    for key in [info.key async for info in bucket.list_objects(PREFIX)]:
        if key.endswith(".database"):
            await bucket.delete_many([key])
        elif not key.endswith(".position.json"):
            fields = msgspec.json.decode(await bucket.get(key))
            fields.pop("database", None)
            await bucket.put(key, msgspec.json.encode(fields))


async def an_old_cluster_learns_it(url: str) -> None:
    """A process sees the original first; a copy that was made before is not named any more."""
    bucket = MemoryStore(ManualClock())
    async with opened(url, bucket) as process:
        await process.keeper.check()
    await as_of_the_release_before(url, bucket)
    with template_copy(url) as other:
        async with opened(url, bucket) as original, opened(other, bucket) as copy:
            assert await original.writes(), "as before the upgrade"
            assert await original.keeper.check() is LifeVerdict.CURRENT
            assert await original.writes()
            assert ask(url, "SELECT database_oid::bigint FROM cluster") == ask(url, OWN_DATABASE)
            assert await copy.keeper.check() is LifeVerdict.RESTORED
            assert not await copy.writes()


async def test_an_old_cluster_learns_its_database_at_the_first_check(metastore_url: str) -> None:
    await an_old_cluster_learns_it(metastore_url)


async def test_a_life_that_the_release_before_begins_is_completed(metastore_url: str) -> None:
    """Its agents call the function that notes the database, and write a record that does not name it."""
    bucket = MemoryStore(ManualClock())
    async with opened(metastore_url, bucket) as process:
        await process.keeper.check()
        assert await process.keeper.begin_anew("by the release before") == 1
        assert ask(metastore_url, "SELECT database_oid::bigint FROM cluster") == ask(metastore_url, OWN_DATABASE)
        await as_of_the_release_before(metastore_url, bucket)
        run(metastore_url, "UPDATE cluster SET database_oid = own_database()")
    async with opened(metastore_url, bucket) as process:
        assert await process.keeper.check() is LifeVerdict.CURRENT
        newest = await newest_life(bucket, None)
        assert newest is not None
        assert (await keeper_module.with_database(bucket, newest)).database == ask(metastore_url, OWN_DATABASE)[0]
        assert msgspec.json.decode(await bucket.get(f"{PREFIX}0000000001.json")).get("database") is None


async def test_two_clusters_of_one_server_do_not_meet(metastore_url: str) -> None:
    with template_copy(metastore_url) as other:
        run(other, f"UPDATE cluster SET cluster_id = '8XUwXa9qSyi9tSOquGtauQ', incarnation_id = '{uuid.UUID(int=5)}'")
        buckets = [MemoryStore(ManualClock()) for _ in range(2)]
        async with opened(metastore_url, buckets[0]) as one, opened(other, buckets[1]) as two:
            for process in (one, two, one, two):
                assert await process.keeper.check() is LifeVerdict.CURRENT
                assert await process.writes()


@pytest.mark.slow
def test_an_agent_on_a_restored_dump_in_the_same_server_writes_nothing(
    postgres_server: EmbeddedPostgres, copies: Copies, tmp_path: Path
) -> None:
    """With pg_dump and pg_restore, and real agents: the original continues, and the copy stays as it was restored."""
    programs, bucket = find_installation().bin_dir, (tmp_path / "bucket").as_uri()
    with copies() as url, AgentUnderTest(formatted(url, bucket)) as agent:
        admin = AdminClient({"bootstrap.servers": agent.kafka})
        admin.create_topics([NewTopic("t", 1)])["t"].result(SECONDS_MAX)
        name = f"restored_{uuid.uuid4().hex[:8]}"
        run(postgres_server.url(), f"CREATE DATABASE {name} TEMPLATE template0")
        other, dumped = postgres_server.url(name), tmp_path / "dump"
        subprocess.run([programs / "pg_dump", "-Fc", "--no-owner", "-f", dumped, "-d", url], check=True)
        subprocess.run([programs / "pg_restore", "--no-owner", "-d", other, dumped], check=True)
        written = (
            "SELECT next_offset, (SELECT sum(seq)::bigint FROM commit_shards), (SELECT count(*) FROM setting_reports)"
            " FROM metadata_head"
        )
        before, log = ask(other, written), tmp_path / "log"
        reading, writing = os.pipe()
        flags = ["--metastore-url", other, "--bucket", bucket, "--http-port", "0"]
        with log.open("w") as errors:
            process = Forked([*flags, "--listeners", "PLAINTEXT://127.0.0.1:0"], writing, errors.fileno())
        try:
            until = time.monotonic() + SECONDS_MAX
            while "verdict=restored" not in log.read_text():
                assert time.monotonic() < until
                time.sleep(0.1)
            assert main(["doctor", *flags[:4]]) == 1
        finally:
            process.kill()
            process.wait(SECONDS_MAX)
            os.close(reading)
            os.close(writing)
        assert ask(other, written) == before
        producer = Producer({"bootstrap.servers": agent.kafka})
        producer.produce("t", value="continues")
        assert producer.flush(SECONDS_MAX) == 0
        run(postgres_server.url(), f"DROP DATABASE {name} WITH (FORCE)")


def formatted(url: str, bucket: str) -> dict[str, object]:
    settings: dict[str, object] = {"metastore.url": url, "bucket": bucket, "log.level": "error"}
    format_storage(settings)
    return settings


def _same_server(found: ServerLife, newest: LifeRecord | None) -> bool:
    return found.server.system_identifier == found.begun_on.system_identifier


def _by_the_row(found: ServerLife, newest: LifeRecord | None) -> bool:
    return _same_server(found, newest) and found.begun_on.database in (0, found.server.database)


PYTHON_BUGS: dict[str, tuple[object, str, object, Callable[[str], object]]] = {
    "the database is not compared": (verdict_module, "_is_the_same_database", _same_server, a_copy_writes_nothing),
    "the bucket's record of it is not compared": (
        *(verdict_module, "_is_the_same_database", _by_the_row),
        an_old_cluster_learns_it,
    ),
}


@pytest.mark.parametrize("bug", PYTHON_BUGS)
async def test_a_planted_bug_in_the_comparison_is_caught(metastore_url: str, bug: str, patch: Patch) -> None:
    module, name, wrong, proof = PYTHON_BUGS[bug]
    patch.replace(module, name, wrong)
    with pytest.raises((AssertionError, UnavailableError)):
        await proof(metastore_url)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        ("assert_life", "(database_oid = own_database() OR database_oid IS NULL)", "true"),
        ("begin_life", ", database_oid = own_database()", ""),
        ("record_database", "SET database_oid = own_database()", "SET database_oid = database_oid"),
    ],
)
async def test_a_planted_bug_in_sql_is_caught(metastore_url: str, function: str, right: str, wrong: str) -> None:
    plant(metastore_url, function, right, wrong)
    with pytest.raises((AssertionError, UnavailableError)):
        await _both(metastore_url)


async def _both(url: str) -> None:
    await a_copy_writes_nothing(url)
    await an_old_cluster_learns_it(url)


def test_a_server_names_its_database() -> None:
    assert str(Server(7, 3, 16384)) == "7/3/16384"
