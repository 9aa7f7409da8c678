"""A copy that is made after a life was prepared and before it began does not begin that life a second time.

The original begins it and hands out its numbers; the copy has the same prepared incarnation id, timeline and system
identifier.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from headrace.config.settings import Settings
from headrace.metastore.life.bucket import newest_life
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.numbers import epoch_floor, log_floor
from headrace.metastore.life.verdict import LifeVerdict
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.memory import MemoryStore
from load.postgres_servers import Servers, run
from tests.manual_clock import ManualClock
from tests.metastore.sessions import create, new_topic
from tests.metastore.sql_sources import plant

pytestmark = pytest.mark.requirement("W1", "W7")


class Numbers(NamedTuple):
    """What a life hands out."""

    life: int
    incarnation_id: uuid.UUID
    producer_id: int
    topic_number: int
    leader_epoch: int


@dataclass
class Opened:
    """A process on a database."""

    metastore: PostgresMetastore
    keeper: LifeKeeper

    async def numbers(self, topic: str) -> Numbers:
        found = await self.metastore.life.describe_life()
        created = (await create(self.metastore, new_topic(topic))).topics_by_name[topic]
        ids = await self.metastore.commits.allocate_producer_ids(10)
        return Numbers(found.life, found.incarnation_id, ids.start, created.topic_number, created.leader_epochs[0])


async def opened(url: str, bucket: MemoryStore, seed: int) -> Opened:
    metastore = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
    return Opened(metastore, LifeKeeper(metastore.life, bucket, ManualClock(), random.Random(seed)))


async def prepare_only(process: Opened, monkeypatch: pytest.MonkeyPatch, *, by_operator: bool) -> uuid.UUID:
    """Name the next life in the bucket and do not begin it; its incarnation id. The process is gone afterwards."""
    named: list[uuid.UUID] = []

    async def killed(life: int, incarnation_id: uuid.UUID) -> bool:
        named.append(incarnation_id)
        raise UnavailableError(f"killed before life {life}")

    monkeypatch.setattr(process.metastore.life, "begin_life", killed)
    with pytest.raises(UnavailableError, match="killed"):
        await (process.keeper.begin_anew("restored") if by_operator else process.keeper.check())
    await process.metastore.close()
    return named[0]


def assert_nothing_again(copy: Numbers, original: Numbers) -> None:
    """Numbers of the copy's life are above those of the original's, under another incarnation id."""
    assert copy.life > original.life
    assert copy.incarnation_id != original.incarnation_id, "or the janitor does not notice the change"
    assert copy.producer_id >= copy.life << 40 > original.producer_id
    assert copy.topic_number >= log_floor(copy.life) > original.topic_number
    assert copy.leader_epoch >= epoch_floor(copy.life) > original.leader_epoch


async def an_operator_declares_a_copy(url: str, monkeypatch: pytest.MonkeyPatch, *, later_lives: int = 0) -> None:
    """The metastore is a copy of the database, made between prepare_life and begin_life.

    Both have one oid, as in a copy of the volume: by another one the copy would be known.
    """
    plant(url, "assert_life", "split_part(pg_relation_filepath('cluster'), '/', -2)::oid", "1::oid")
    bucket = MemoryStore(ManualClock())
    process = await opened(url, bucket, 1)
    assert await process.keeper.check() is LifeVerdict.CURRENT
    prepared = await prepare_only(process, monkeypatch, by_operator=True)
    name = urlsplit(url).path.removeprefix("/")
    with psycopg.connect(url, dbname="postgres", autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}_copy" TEMPLATE "{name}"'.encode())

    original = await opened(url, bucket, 2)
    assert await original.metastore.life.begin_life(1, prepared), "the process was only slow"
    for _ in range(later_lives):
        await original.keeper.begin_anew("restored")
    assert await original.keeper.check() is LifeVerdict.CURRENT
    used = await original.numbers("original")
    copy = await opened(urlunsplit(urlsplit(url)._replace(path=f"/{name}_copy")), bucket, 3)
    try:
        assert await copy.keeper.begin_anew("restored") == 2 + later_lives
        again = await copy.numbers("copy")
        assert again.incarnation_id != prepared
        assert_nothing_again(again, used)
        assert await original.keeper.check() is LifeVerdict.SUPERSEDED
    finally:
        await original.metastore.close()
        await copy.metastore.close()


@pytest.mark.parametrize("later_lives", [0, 1])
async def test_a_copy_with_a_prepared_life_begins_another_one(
    metastore_url: str, monkeypatch: pytest.MonkeyPatch, later_lives: int
) -> None:
    await an_operator_declares_a_copy(metastore_url, monkeypatch, later_lives=later_lives)


@pytest.mark.parametrize("later_lives", [0, 1])
async def test_a_server_that_keeps_every_prepared_id_is_caught(
    metastore_url: str, monkeypatch: pytest.MonkeyPatch, later_lives: int
) -> None:
    plant(metastore_url, "prepare_life", "nullif(next_incarnation_id, p_spent)", "next_incarnation_id")
    with pytest.raises(AssertionError):
        await an_operator_declares_a_copy(metastore_url, monkeypatch, later_lives=later_lives)


async def test_an_operator_finishes_the_life_that_the_same_command_prepared(
    metastore_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A life that could not begin at once, because the metadata log moved, does not use up a number."""
    bucket = MemoryStore(ManualClock())
    process = await opened(metastore_url, bucket, 1)
    assert await process.keeper.check() is LifeVerdict.CURRENT
    begin = process.metastore.life.begin_life
    named: list[int] = []

    async def late_once(life: int, incarnation_id: uuid.UUID) -> bool:
        named.append(life)
        return len(named) > 1 and await begin(life, incarnation_id)

    monkeypatch.setattr(process.metastore.life, "begin_life", late_once)
    assert await process.keeper.begin_anew("restored") == 1
    assert named == [1, 1]
    await process.metastore.close()


async def test_a_volume_copy_with_a_life_that_the_original_used_writes_nothing(
    prepared_primary: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promoted server is copied before its life begins: the copy does not begin that life by itself."""
    bucket = MemoryStore(ManualClock())
    with Servers(prepared=prepared_primary) as servers:
        first = await opened(servers.url("primary"), bucket, 1)
        assert await first.keeper.check() is LifeVerdict.CURRENT
        await asyncio.to_thread(servers.add_standby, "standby")
        await asyncio.to_thread(servers.promote, "standby")
        await prepare_only(await opened(servers.url("standby"), bucket, 2), monkeypatch, by_operator=False)
        await asyncio.to_thread(servers.stop, "standby")
        await asyncio.to_thread(servers.copy_volume, "standby", "copy")
        await asyncio.to_thread(servers.start, "standby")

        original = await opened(servers.url("standby"), bucket, 3)
        assert await original.keeper.check() is LifeVerdict.CURRENT, "the next process finishes what was prepared"
        used = await original.numbers("original")
        run(servers.url("standby"), "CHECKPOINT")
        await original.keeper.check()
        await original.keeper.note_position()
        await original.metastore.close()
        await asyncio.to_thread(servers.stop, "standby")

        await asyncio.to_thread(servers.start, "copy")
        copy = await opened(servers.url("copy"), bucket, 4)
        assert await copy.keeper.check() is LifeVerdict.RESTORED
        with pytest.raises(UnavailableError):
            await copy.metastore.commits.allocate_producer_ids(1)
        named = await newest_life(bucket, None)
        assert named is not None
        assert named.life == used.life == 1
        assert await copy.keeper.begin_anew("restored") == 2
        assert_nothing_again(await copy.numbers("copy"), used)
        await copy.metastore.close()
        await first.metastore.close()
