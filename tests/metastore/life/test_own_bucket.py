"""A process compares its bucket with the one that the metastore's row names, and records it while the row names none.

Buckets are in memory; tests/cli/test_cli_buckets.py has agents and the commands.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from headrace.compactor.spark.store import throttled_store
from headrace.metastore.api.life import KnownBucket
from headrace.metastore.life import own_bucket
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.own_bucket import learn_bucket
from headrace.metastore.life.verdict import LifeVerdict
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.bucket_properties import OBJECT_KEY as BUCKET_ID
from headrace.storage.bucket_properties import bucket_address, parse, read_bucket_id, render, replace_bucket_id
from headrace.storage.clock import SystemClock
from headrace.storage.errors import CorruptError, InvalidError, UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.objects.memory import MemoryStore
from tests.manual_clock import ManualClock
from tests.patch import Patch

pytestmark = pytest.mark.requirement("C12", "X4")


class Watched:
    """A process's comparison, on a bucket in memory that may lack the files of the metastore."""

    def __init__(self, metastore: PostgresMetastore, bucket: MemoryStore, name: str) -> None:
        rng = random.Random(1)
        self.keeper = LifeKeeper(
            *(metastore.life, bucket, ManualClock(), rng),
            learn_bucket=lambda: learn_bucket(metastore.life, bucket, f"memory://{name}", rng),
        )

    async def check(self) -> LifeVerdict:
        return await self.keeper.check()


async def name_files(metastore: PostgresMetastore, url: str, count: int) -> list[uuid.UUID]:
    """Rows of files with live records, without objects."""
    files = [uuid.UUID(int=(1_700_000_000_000 + number << 80) | 7 << 76 | 2 << 62 | number) for number in range(count)]
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as raw:
        await raw.execute(
            "INSERT INTO segment_files (file_id, state, size, live_bytes, committed_at)"
            " SELECT id, file_live(), 1, 1, now() FROM unnest(%s::uuid[]) AS id",
            (files,),
        )
    return files


async def a_wrong_bucket_is_not_learned(metastore: PostgresMetastore, url: str) -> None:
    right, wrong = MemoryStore(ManualClock()), MemoryStore(ManualClock())
    for file_id in await name_files(metastore, url, 20):
        await right.put(object_key(file_id), b"x")
    assert await Watched(metastore, wrong, "wrong").check() is LifeVerdict.OTHER_BUCKET
    assert [info.key async for info in wrong.list_objects()] == [], "no life is recorded there"
    with pytest.raises(UnavailableError, match="another life"):
        await metastore.commits.allocate_producer_ids(1)
    assert await Watched(metastore, right, "right").check() is LifeVerdict.CURRENT
    known = await metastore.life.known_bucket()
    assert known == (await read_bucket_id(right), "memory://right")
    assert await Watched(metastore, wrong, "wrong").check() is LifeVerdict.OTHER_BUCKET


async def test_a_wrong_bucket_is_not_learned(metastore: PostgresMetastore, metastore_url: str) -> None:
    await a_wrong_bucket_is_not_learned(metastore, metastore_url)


async def a_running_process_notices_an_adoption(metastore: PostgresMetastore, url: str) -> None:
    old, new = MemoryStore(ManualClock()), MemoryStore(ManualClock())
    running = Watched(metastore, old, "old")
    assert await running.check() is LifeVerdict.CURRENT
    for key in [info.key async for info in old.list_objects()]:
        await new.put(key, await old.get(key))
    assert await Watched(metastore, new, "new").check() is LifeVerdict.CURRENT, "the id alone does not tell a copy"
    drawn, known = uuid.UUID(int=9), await metastore.life.known_bucket()
    await replace_bucket_id(new, drawn)
    assert await metastore.life.adopt_bucket(known, KnownBucket(drawn, "memory://new"))
    assert not await metastore.life.adopt_bucket(known, KnownBucket(drawn, "memory://late"))
    assert await running.check() is LifeVerdict.OTHER_BUCKET
    assert await Watched(metastore, new, "new").check() is LifeVerdict.CURRENT


async def test_a_running_process_notices_an_adoption(metastore: PostgresMetastore, metastore_url: str) -> None:
    await a_running_process_notices_an_adoption(metastore, metastore_url)


async def _not_compared(keeper: LifeKeeper, found: object) -> bool:
    return True


async def _none_missing(*arguments: object, **more: object) -> list[uuid.UUID]:
    return []


Proof = Callable[[PostgresMetastore, str], object]
BUGS: dict[str, tuple[object, str, object, Proof]] = {
    "the id is not compared": (LifeKeeper, "_is_its_bucket", _not_compared, a_running_process_notices_an_adoption),
    "files are not looked for": (own_bucket, "most_missing", _none_missing, a_wrong_bucket_is_not_learned),
}


@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_is_caught(
    metastore: PostgresMetastore, metastore_url: str, bug: str, patch: Patch
) -> None:
    where, name, wrong, proof = BUGS[bug]
    patch.replace(where, name, wrong)
    with pytest.raises(AssertionError):
        await proof(metastore, metastore_url)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("s3://logs", "s3://logs"),
        ("s3://logs/", "s3://logs"),
        ("s3://logs/a/b/", "s3://logs/a/b"),
        ("s3://logs/a%20b", "s3://logs/a b"),
        ("file:///data/x/", "file:///data/x"),
        ("file://localhost/data/../x", "file:///x"),
        ("memory://m", "memory://m"),
    ],
)
def test_an_address_has_one_spelling(url: str, address: str) -> None:
    assert bucket_address(url) == address


@pytest.mark.parametrize("data", [b"", b"\xff", b"version=2\nbucket.id=x", b"version=1\n", b"version=1\nbucket.id=1"])
def test_a_damaged_id_is_no_id(data: bytes) -> None:
    with pytest.raises(CorruptError):
        parse(data)


async def test_an_id_is_drawn_once() -> None:
    store, drawn = MemoryStore(SystemClock()), uuid.UUID(int=7)
    assert await read_bucket_id(store) is None
    assert await own_bucket.ensure_bucket_id(store, drawn) == drawn
    assert await own_bucket.ensure_bucket_id(store, uuid.UUID(int=8)) == drawn
    assert await store.get(BUCKET_ID) == render(drawn)


async def test_an_executor_of_spark_has_the_drivers_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BUCKET", tmp_path.as_uri())
    rates = {"bytes_per_s": 1e9, "requests_per_s": 1e3}
    drawn = uuid.UUID(int=7)
    with pytest.raises(InvalidError, match="correct HEADRACE_BUCKET"):
        async with throttled_store(SystemClock(), random.Random(1), str(drawn), **rates):
            pass
    for bucket_id in ("", str(drawn)):
        async with throttled_store(SystemClock(), random.Random(1), bucket_id, **rates) as store:
            await replace_bucket_id(store, drawn)
