"""What a table with a row per key has of records with columns, without keys, and of partitions that are new; by tasks
that need no JVM.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")
pytest.importorskip("pyspark", reason="pyspark is needed: make setup")

from pyiceberg.transforms import BucketTransform

from headrace.metastore.api.topics import CountChange
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.partitions.changes import Expansion, change_count
from headrace.scan.cluster import ScannedCluster
from headrace.scan.errors import OptionError
from headrace.storage.records.codec import Record, encode_batch
from headrace.tables.catalog import CatalogAddress
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.keyed.merging import groups_of
from headrace.tables.listing import TableAddress, duckdb_lines
from headrace.tables.log.policy import Ahead, AppendStep
from headrace.tables.looking import Condition
from headrace.tables.open_tables import Choice, OpenTables
from headrace.tables.worker import KEPT_BY_SPARK, TableRound
from tests.spark.local_tasks import LocalTasks
from tests.spark.table_driver import driver
from tests.spark.world import TIME_MS, ScanWorld
from tests.tables.duckdb_reader import rows_by_duckdb
from tests.tables.registry import avro_bytes
from tests.tables.test_valued_tables import named, renamed
from tests.tables.values.test_value_columns import AVRO as TYPES
from tests.tables.world import NAMESPACE, Tables

pytestmark = pytest.mark.requirement("X11")

AVRO = json.dumps(
    {"type": "record", "name": "Order", "fields": [
        {"name": "customer", "type": "string"}, {"name": "number", "type": "int"}, {"name": "item", "type": "string"},
    ]}
)  # fmt: skip


def batch(*pairs: tuple[str | None, str | None], at: int = 0) -> bytes:
    """Key and value of each record; `at`: ms after the first time."""
    return encode_batch(
        [
            Record(
                n, TIME_MS + at, None if key is None else key.encode(), None if value is None else value.encode(), []
            )
            for n, (key, value) in enumerate(pairs)
        ],
        base_offset=0,
    )


async def merge(tables: Tables, name: str = "orders", split_bytes: int = 1 << 26) -> TableRound:
    """Rounds of a driver until nothing is left."""
    async with driver(LocalTasks(), tables, split_bytes) as worker:
        while (done := await worker.keep(name)).has_more:
            pass
        return done


def values(tables: Tables, name: str = "orders") -> dict[str, str]:
    rows = tables.load(name).scan().to_arrow().to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"].decode(): row["value"].decode() for row in rows}


async def test_markers_delete_and_a_file_without_a_changed_key_is_not_written_again(
    world: ScanWorld, tables: Tables
) -> None:
    a, b = await world.topic("orders", 2)
    await tables.create("orders", is_keyed=True)
    await world.commit((a, batch(*((f"a{n}", "1") for n in range(40)))), (b, batch(("b", "1"), ("c", None))))
    assert (await tables.follow()).reason == KEPT_BY_SPARK
    assert values(tables) == {}
    await merge(tables)
    assert values(tables) == {f"a{n}": "1" for n in range(40)} | {"b": "1"}
    table = tables.load()
    assert table.schema().identifier_field_names() == {"key"}
    assert groups_of(table, ("key",)).buckets == 16

    def files() -> set[Path]:
        return {each for each in tables.files() if "dead_letters" not in str(each)}

    before = files()
    await world.commit((a, batch(("a7", "2"), ("a7", None), ("a7", "3"), ("a8", None), (None, "lost"))))
    await merge(tables)
    assert values(tables) == {f"a{n}": "1" for n in range(40) if n != 8} | {"b": "1", "a7": "3"}
    assert 1 <= len(files() - before) <= 2, "two of 16 buckets"
    assert [each[:3] for each in tables.dead()] == [(0, 44, b"lost")]
    assert tables.dead()[0][3] == "the record has no key"
    address = TableAddress("test", {}, "headrace.orders", tables.load().metadata_location)
    found = await asyncio.to_thread(rows_by_duckdb, duckdb_lines(address))
    assert dict(zip(found.column("key").to_pylist(), found.column("value").to_pylist(), strict=True))[b"a7"] == b"3"
    for _ in range(3):
        await world.commit((a, batch(("a7", "4"))))
        await merge(tables)
    snapshot = tables.load().current_snapshot()
    assert snapshot is not None
    assert all(m.has_added_files() or m.has_existing_files() or m.added_snapshot_id == snapshot.snapshot_id
               for m in snapshot.manifests(tables.load().io)), "no manifest is left of files that are gone"  # fmt: skip


async def test_columns_of_the_value_can_be_the_key(world: ScanWorld, tables: Tables) -> None:
    (a,) = await world.topic("orders", 1)
    await tables.create("orders", values=("json",), is_keyed=True, key_columns=("customer", "number"))

    def order(customer: str | None, number: int | None, item: str) -> str:
        return json.dumps({"customer": customer, "number": number, "item": item})

    await world.commit((a, batch((None, order("ann", 1, "pen")), ("k", order("ann", 2, "cup")), ("k", "{}"))))
    await world.commit((a, batch(("k", order("ann", 1, "ink")), ("k", None), ("k", order("bob", None, "jar")))))
    await merge(tables)

    def rows() -> list[tuple[Any, ...]]:
        return sorted((r["customer"], r["number"], r["item"], r["kafka"]["offset"]) for r in tables.found())

    assert rows() == [("ann", 1, "ink", 3), ("ann", 2, "cup", 1)]
    schema = tables.load().schema()
    assert schema.identifier_field_names() == {"customer", "number"}
    assert groups_of(tables.load(), ("customer", "number")).buckets == 16
    reasons = {offset: reason for _, offset, _, reason in tables.dead()}
    assert reasons.keys() == {2, 4, 5}
    assert reasons[4] == "a null value has no key columns: customer, number"
    assert "key column is null" in reasons[2]
    assert "key column is null" in reasons[5]
    await world.commit((a, batch(("k", order("ann", 2, "mug")), ("k", '{"customer": "ann", "number": 3, "price": 2}'))))
    await merge(tables, split_bytes=1)
    assert [row[:2] for row in rows() if row[2] is not None] == [("ann", 1), ("ann", 2)]
    assert {row["price"] for row in tables.found()} == {None, 2}


def without_record(row: dict[str, Any]) -> dict[str, Any]:
    """The columns of the value."""
    return {name: value for name, value in row.items() if name != "kafka"}


@pytest.mark.slow
async def test_columns_of_each_type_are_written_again_as_they_were(world: ScanWorld, tables: Tables) -> None:
    fields = [{"name": f"f{n}", "type": renamed(kind, n)} for n, (_, kind, *_) in enumerate(TYPES)]
    schema = {"type": "record", "name": "Order", "fields": fields}
    value = avro_bytes(
        fastavro.parse_schema(schema), {f"f{n}": named(value, n) for n, (*_, value, _) in enumerate(TYPES)}
    )
    (a,) = await world.topic("orders", 1)
    await tables.create_as_told("orders", ("avro", json.dumps(schema)), ["bucket[1](kafka.key)"], is_keyed=True,
                                key_columns=("key",))  # fmt: skip
    first: list[dict[str, Any]] = []
    for name, given in ((b"k", value), (b"l", value), (b"m", None), (b"k", value), (b"m", value), (b"n", b"")):
        await world.commit((a, encode_batch([Record(0, TIME_MS, name, given, [("h", b"1")])], base_offset=0)))
        await merge(tables, split_bytes=1)
        first = first or [without_record(row) for row in tables.found()]
    rows = tables.found()
    assert [(row["kafka"]["key"], row["kafka"]["offset"]) for row in rows] == [(b"l", 1), (b"k", 3), (b"m", 4)]
    assert [without_record(row) for row in rows] == first * 3
    assert sum(each is not None for each in first[0].values()) == sum(read is not None for *_, read in TYPES)
    assert len(tables.dead()) == 1


async def test_files_of_other_buckets_are_merged_in_larger_groups(world: ScanWorld, tables: Tables) -> None:
    (a,) = await world.topic("orders", 1)
    await tables.create("orders", layout=["bucket[4](key)"], is_keyed=True)
    expected: dict[str, str] = {}
    for buckets, groups in ((4, 4), (6, 2), (None, 1), (3, 1)):
        if buckets != 4:
            with tables.load().update_spec() as update:
                for field in tables.load().spec().fields:
                    update.remove_field(field.name)
                if buckets is not None:
                    update.add_field("key", BucketTransform(buckets), f"in_{buckets}")
        assert groups_of(tables.load(), ("key",)).buckets == groups
        for keys in (range(2), range(12)):
            pairs = [(f"k{n}", None if n % 5 == 4 else f"{buckets}-{len(keys)}") for n in keys]
            expected |= {key: value for key, value in pairs if value is not None}
            expected = {key: value for key, value in expected.items() if (key, None) not in pairs}
            await world.commit((a, batch(*pairs[:1])), (a, batch(*pairs[1:])))
            await merge(tables, split_bytes=1)
            assert values(tables) == expected


async def test_what_was_rolled_back_is_merged_again(world: ScanWorld, tables: Tables) -> None:
    (a,) = await world.topic("orders", 1)
    await tables.create("orders", is_keyed=True)
    for number in range(3):
        await world.commit((a, batch(("k", f"{number}"), (f"x{number}", "1"), (f"x{number - 1}", None))))
        await merge(tables)
    expected = values(tables)
    assert expected == {"k": "2", "x2": "1"}
    tables.load().manage_snapshots().rollback_to_snapshot(tables.load().history()[1].snapshot_id).commit()
    assert (await merge(tables)).condition is Condition.STOPPED
    cluster = ScannedCluster(world.postgres, world.store, world.clock, world.rng)
    command = OpenTables(cluster, tables.catalog, CatalogAddress("test", NAMESPACE, {}))
    look = await command.look("orders")
    lost = AppendStep({}, (), (Ahead(0, 9, 5),))
    with pytest.raises(OptionError, match="cannot go back: the rows that it replaced are gone"):
        await command._continue(replace(look, step=lost), Choice.LOG)
    await command.resume("orders", "rows")
    await merge(tables)
    assert values(tables) == expected


async def test_errors_tolerance_none_pauses_at_a_record_without_a_key(world: ScanWorld, tables: Tables) -> None:
    (a,) = await world.topic("orders", 1)
    await tables.create("orders", values=("binary", "", "none"), is_keyed=True)
    await world.commit((a, batch(("a", "1"), (None, "2"), ("c", "3"))))
    done = await merge(tables)
    assert (done.condition, done.reason) == (Condition.PAUSED, "partition 0, offset 1: its key cannot be read")
    assert values(tables) == {"a": "1"}


async def grow(world: ScanWorld, name: str, partitions: int) -> list[int]:
    """Let a topic grow as metadata.format 4 does; the keys of all partitions."""
    image = await load_image(world.postgres.cluster)
    topic = image.topics_by_name[name]
    change = change_count(topic.ordered_partitions, partitions)
    assert isinstance(change, Expansion)
    wanted = CountChange(topic.topic_id, topic.initial_partition_count, change)
    assert await world.postgres.topics.change_partition_counts(image.offset, [wanted])
    world.view.image = world.view.head = await load_image(world.postgres.cluster)
    keys = [topic.topic_number << 24 | index for index in range(partitions)]
    world.live.update((key, world.live.get(key, [])) for key in keys)
    return keys


async def test_a_new_partition_waits_for_its_source(world: ScanWorld, tables: Tables) -> None:
    (a,) = await world.topic("orders", 1)
    await tables.create("orders", is_keyed=True)
    await world.commit((a, batch(("k", "1"), ("x", "1"))))
    await world.commit((a, batch(("k", "2"), at=5_000)))
    _, b = await grow(world, "orders", 2)
    await world.commit((a, batch(("x", "2"))), (b, batch(("k", "3"), ("y", None))))
    seen = []
    async with driver(LocalTasks(), tables) as worker:
        worker.chunk_bytes = 1
        while (done := await worker.keep("orders")).has_more:
            if done.outcome is CommitOutcome.COMMITTED:
                seen.append(values(tables))
    assert values(tables) == {"k": "3", "x": "2"}
    in_order = [each["k"] for each in seen if each]
    assert in_order == sorted(in_order)
    assert len(in_order) >= 2


async def test_of_a_key_in_two_partitions_the_later_time_of_one_merge_wins(world: ScanWorld, tables: Tables) -> None:
    a, b = await world.topic("orders", 2)
    await tables.create("orders", is_keyed=True)
    await world.commit((a, batch(("k", "later"), at=9_000)), (b, batch(("k", "earlier"), at=8_000)))
    await merge(tables)
    assert values(tables) == {"k": "later"}
    await world.commit((b, batch(("k", "merged later"), at=1)))
    await merge(tables)
    assert values(tables) == {"k": "merged later"}


REFUSED: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    ((), {"key_columns": ("customer",)}, "key columns are for a table with table.mode=upsert"),
    ((), {"is_keyed": True, "key_columns": ("customer",)}, "the table has no columns of the value"),
    (("avro", AVRO), {"is_keyed": True, "key_columns": ("nothing",)}, "the table has no column nothing"),
    (("avro", AVRO.replace('"int"', '"double"')), {"is_keyed": True, "key_columns": ("number",)}, "is double"),
    (("avro", AVRO), {"is_keyed": True, "key_columns": ("a.b",)}, "not key or the name of a column"),
    (("avro", AVRO), {"is_keyed": True, "key_columns": ("customer",), "layout": ["customer"]},
     r"partitioned by bucket\[N\]\(customer\), not by customer"),
]  # fmt: skip


async def test_keys_that_a_table_cannot_have_are_refused(world: ScanWorld, tables: Tables) -> None:
    await world.topic("orders", 1)
    for told, more, reason in REFUSED:
        with pytest.raises(OptionError, match=reason):
            await tables.create_as_told("orders", told, **more)
        assert tables.catalog.names() == []
    keys: dict[str, Any] = {"is_keyed": True, "key_columns": ("customer", "number")}
    await tables.create_as_told("orders", ("avro", AVRO), layout=["bucket[4](customer)", "day"], **keys)
    spec = tables.load().spec()
    assert [field.name for field in spec.fields] == ["customer_bucket_4", "timestamp_day"]
    assert tables.load().schema().identifier_field_names() == {"customer", "number"}
