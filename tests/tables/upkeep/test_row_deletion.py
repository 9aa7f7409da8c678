"""Rows go by a condition or by their age: those of the condition, no other, and no row comes again."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest import mock

import fastavro
import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from pyiceberg.expressions import EqualTo, Or

from headrace.scan.cluster import ScannedCluster
from headrace.scan.errors import OptionError
from headrace.tables.catalog import CatalogAddress
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.commit.snapshots import KnownManifests
from headrace.tables.errors import ForeignTableError, TableError
from headrace.tables.open_tables import OpenTables
from headrace.tables.upkeep.deleting import RowDeletion, condition_of, count_rows, with_key
from headrace.tables.upkeep.replacing import Replacer
from headrace.tables.upkeep.steps import TableUpkeep, UpkeepTerms
from tests.spark.world import TIME_MS, ScanWorld
from tests.tables.history import rewrite
from tests.tables.registry import avro_bytes
from tests.tables.test_valued_tables import batch
from tests.tables.world import NAMESPACE, Tables, from_a_thread

pytestmark = pytest.mark.requirement("X11")


@pytest.fixture
def command(world: ScanWorld, tables: Tables) -> OpenTables:
    cluster = ScannedCluster(world.postgres, world.store, world.clock, world.rng)
    return OpenTables(cluster, tables.catalog, CatalogAddress("test", NAMESPACE, {"uri": "sqlite:///x"}))


async def written(world: ScanWorld, tables: Tables, count: int = 4, *values: str) -> int:
    """A table with a file for each of so many commits; record 1 of each has no key, and its times are seconds apart."""
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=values)
    for number in range(count):
        await world.write(key, number)
        await tables.follow()
    return key


def offsets(tables: Tables) -> list[int]:
    return [row.offset for row in tables.rows()]


async def test_the_rows_of_a_key_are_counted_and_then_deleted(
    world: ScanWorld, tables: Tables, command: OpenTables
) -> None:
    key = await written(world, tables)
    found = await command.delete_rows("orders", None, "key-2", yes=False, expires=False)
    assert (found["rows"], found["files"], found["is_deleted"]) == (2, 1, False)
    assert len(offsets(tables)) == 12
    found = await command.delete_rows("orders", None, "key-2", yes=True, expires=False)
    assert (found["rows"], found["files"], found["snapshots"]) == (2, 1, 5)
    assert offsets(tables) == [0, 1, 2, 3, 4, 5, 7, 9, 10, 11]
    before = len(tables.files())
    found = await command.delete_rows("orders", None, "key-2", yes=True, expires=True)
    assert (found["rows"], found["snapshots"]) == (0, 0)
    assert len(tables.files()) == before - 1, "the file with the rows is gone, too"
    rewrite(tables.load())
    await world.write(key, 2)
    await tables.follow()
    assert offsets(tables) == [0, 1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 13, 14], "what is appended later is not deleted"
    assert (await command.describe("orders"))["records"] == 13


async def test_a_condition_takes_what_is_true_and_keeps_what_is_null(
    world: ScanWorld, tables: Tables, command: OpenTables
) -> None:
    await written(world, tables, 2)
    every = await command.delete_rows("orders", "offset >= 0 and offset != 4", None, yes=False, expires=False)
    assert (every["rows"], every["files"]) == (5, 2)
    table = tables.load()
    assert count_rows(table, with_key(table, b"key-1")).rows == 2
    assert count_rows(table, condition_of(table, "key is null")).rows == 2
    assert count_rows(table, Or(EqualTo("offset", 1), with_key(table, b"key-1"))).rows == 3, "true with a null in it"
    RowDeletion(~with_key(table, b"key-1")).delete(Replacer(tables.load, KnownManifests()))
    assert [row.key for row in tables.rows()] == [None, b"key-1", None, b"key-1"]


async def test_a_deletion_ends_when_a_file_comes_back(world: ScanWorld, tables: Tables) -> None:
    """Another engine may roll the table back after each commit."""
    await written(world, tables, 1)
    deletion = RowDeletion(with_key(tables.load(), b"key-0"))
    with (
        mock.patch.object(Replacer, "replace", return_value=CommitOutcome.COMMITTED) as replace,
        pytest.raises(TableError, match="has a file again"),
    ):
        deletion.delete(Replacer(tables.load, KnownManifests()))
    assert replace.call_count == 1


async def test_bad_conditions_are_named(world: ScanWorld, tables: Tables, command: OpenTables) -> None:
    await written(world, tables, 1)
    for where in ("", "offset >", "nothing = 1", "offset = 'x'", "1"):
        with pytest.raises(OptionError, match="not a condition"):
            await command.delete_rows("orders", where, None, yes=True, expires=False)
    with pytest.raises(OptionError, match="needs --yes"):
        await command.delete_rows("orders", "offset = 1", None, yes=False, expires=True)
    tables.catalog.catalog.create_table(f"{NAMESPACE}.foreign", tables.load().schema())
    with pytest.raises(ForeignTableError):
        await command.delete_rows("foreign", "offset = 1", None, yes=True, expires=False)
    found = KnownManifests().live(tables.load())
    with (
        mock.patch.object(KnownManifests, "live", return_value=found._replace(has_deletes=True)),
        pytest.raises(TableError, match="delete files"),
    ):
        await command.delete_rows("orders", "offset = 1", None, yes=True, expires=False)
    assert len(offsets(tables)) == 3


async def test_dead_letters_are_deleted_by_their_own_name(
    world: ScanWorld, tables: Tables, command: OpenTables
) -> None:
    key = await written(world, tables, 2, "json")
    assert len(tables.dead()) == 6
    found = await command.delete_rows("orders_dead_letters", "offset < 2", None, yes=True, expires=False)
    assert found["rows"] == 2
    await world.write(key, 5)
    await tables.follow()
    assert [offset for _, offset, *_ in tables.dead()] == list(range(2, 9))


@pytest.mark.slow
async def test_rows_that_are_appended_and_files_that_are_replaced_meanwhile(world: ScanWorld, tables: Tables) -> None:
    """The deletion loses its commit to an append, then finds its file rewritten."""
    key = await written(world, tables, 3)

    async def meanwhile() -> None:
        await world.write(key, 1)
        await tables.again().follow()
        await asyncio.to_thread(rewrite, tables.again().load())

    tables.failing.before_commit = from_a_thread(meanwhile)
    table = tables.load()
    deletion = RowDeletion(with_key(table, b"key-1"))
    done = await asyncio.to_thread(deletion.delete, Replacer(tables.load, KnownManifests()))
    assert done.rows == 4
    assert [row.offset for row in tables.rows() if row.key == b"key-1"] == []
    assert len(offsets(tables)) == 8


@pytest.mark.slow
async def test_columns_of_values_are_conditions_too(world: ScanWorld, tables: Tables, command: OpenTables) -> None:
    (key,) = await world.topic("orders", 1)
    schema = {"type": "record", "name": "Order", "fields": [{"name": "customer", "type": "string"}]}
    await tables.create("orders", values=("avro", json.dumps(schema)))
    parsed = fastavro.parse_schema(schema)
    await world.commit((key, batch(*(avro_bytes(parsed, {"customer": who}) for who in ("ann", "bob", "ann")))))
    await tables.follow()
    found = await command.delete_rows("orders", "customer = 'ann' and kafka.offset > 0", None, yes=True, expires=False)
    assert found["rows"] == 1
    assert [row["customer"] for row in tables.found()] == ["ann", "bob"]


async def test_rows_older_than_the_retention_go_with_their_files(
    world: ScanWorld, tables: Tables, command: OpenTables
) -> None:
    key = await written(world, tables, 4)
    with pytest.raises(OptionError, match="retention-ms"):
        await command.alter("orders", retention_ms=-2)
    await command.alter("orders", retention_ms=5_000)
    assert (await command.describe("orders"))["retention_ms"] == 5_000
    upkeep = TableUpkeep(tables.catalog, UpkeepTerms(files_min=0))

    def kept(now_ms: int) -> Any:
        report = upkeep.keep("orders", TIME_MS + now_ms)
        return report.deleted, offsets(tables)

    assert kept(5_000) == ((0, 0, 0), list(range(12)))
    assert kept(5_001) == ((0, 0, 0), list(range(12))), "a file with younger rows, too, has time"
    assert kept(5_500) == ((3, 1, 0), list(range(3, 12)))
    assert kept(6_500) == ((3, 1, 0), list(range(6, 12)))
    rewrite(tables.load())
    assert kept(7_100) == ((0, 0, 0), list(range(6, 12)))
    assert kept(7_600) == ((3, 0, 1), list(range(9, 12)))
    await command.alter("orders", retention_ms=-1)
    assert kept(1_000_000) == ((0, 0, 0), list(range(9, 12)))
    await world.write(key, 9)
    await tables.follow()
    assert offsets(tables) == list(range(9, 15))
