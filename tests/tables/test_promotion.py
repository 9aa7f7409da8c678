"""A promoted Postgres that lost records: the table that has them stops, also if their offsets are used again."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import psycopg
import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.config.settings import Settings
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.scan.errors import OptionError
from headrace.storage.cluster_properties import write_cluster_id
from headrace.tables.looking import Condition
from headrace.tables.open_tables import Choice, decide, follow_log
from tests.metastore.sql_sources import Throwaway
from tests.spark.world import ScanWorld
from tests.tables.world import Tables

pytestmark = pytest.mark.requirement("X11")

COPY = "copy_before_the_loss"


async def test_records_that_a_promotion_lost_are_named_and_can_be_removed(
    postgres_server: EmbeddedPostgres, metastore_template: str, tmp_path: Path
) -> None:
    with Throwaway(postgres_server, metastore_template).database() as url:
        async with opened(url, tmp_path) as world:
            await write_cluster_id(world.store, world.postgres.cluster_id)
            (key,) = await world.topic("orders", 1)
            await world.write(key, 1)
            tables = Tables(world, tmp_path / "iceberg")
            await tables.create("orders")
            await tables.follow()
        with psycopg.connect(postgres_server.url(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {COPY} TEMPLATE planted".encode())
            try:
                async with opened(url, tmp_path) as world:
                    await adopt(world)
                    await world.write(key, 2)
                    await Tables(world, tmp_path / "iceberg").follow()
                async with opened(postgres_server.url(COPY), tmp_path) as world:
                    await _in_the_next_life(world, key, Tables(world, tmp_path / "iceberg"))
            finally:
                admin.execute(f"DROP DATABASE {COPY} WITH (FORCE)".encode())


async def _in_the_next_life(world: ScanWorld, key: int, tables: Tables) -> None:
    await world.postgres.life.begin_life(1, await world.postgres.life.prepare_life(uuid.UUID(int=7)))
    world.postgres.life.name_life(1)
    await world.begin()
    await adopt(world)
    done = await tables.round()
    assert done.condition is Condition.STOPPED
    assert "partition=0 offsets=3-5" in done.reason
    for number in (3, 4):
        await world.write(key, number)
    done = await tables.round()
    assert done.condition is Condition.STOPPED, "the log is longer than the table now"
    assert "partition=0 offsets=3-5" in done.reason
    with pytest.raises(OptionError):
        decide(tables.load(), Choice.OFFSETS)
    async with tables.worker() as worker:
        look = await worker.tables.look("orders")
    assert look.step is not None
    await asyncio.to_thread(follow_log, look.table, {each.partition: each for each in look.step.ahead})
    await tables.follow()
    await tables.check()
    assert [row.offset for row in tables.rows()] == list(range(9))


class opened:
    """A world on this database, with the bucket that all share."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder

    async def __aenter__(self) -> ScanWorld:
        self._store = await PostgresMetastore.open(self._url, Settings(metastore_pool_size=4))
        self._world = ScanWorld(self._store, self._url, self._folder / "bucket")
        if not self._url.count(COPY):
            await self._world.begin()
        return self._world

    async def __aexit__(self, *_: object) -> None:
        await self._world.service.close()
        await self._store.close()


async def adopt(world: ScanWorld) -> None:
    """Know the topics that the database has."""
    world.view.image = world.view.head = await load_image(world.postgres.cluster)
    for topic in world.view.image.topics_by_name.values():
        world.names[topic.topic_number] = topic.name
        for index in topic.indexes:
            world.live.setdefault(topic.topic_number << 24 | index, [])
