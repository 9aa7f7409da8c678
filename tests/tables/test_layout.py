"""Tables that are partitioned by columns of the value: what readers find in the files, and what is refused."""

from __future__ import annotations

import asyncio
import datetime
import json
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StringType, StructType, TimestamptzType

from headrace.config.table_configs import TABLE_CONFIGS
from headrace.scan.errors import OptionError
from headrace.tables.layout import layout_of, terms_of
from headrace.tables.listing import TableAddress, duckdb_lines
from headrace.tables.looking import Condition
from tests.spark.world import ScanWorld
from tests.tables.duckdb_reader import rows_by_duckdb
from tests.tables.registry import FakeRegistry
from tests.tables.test_valued_tables import batch, record
from tests.tables.world import Tables

pytestmark = pytest.mark.requirement("X11")

DAY = datetime.date(1970, 1, 1)
SCHEMA = Schema(
    NestedField(1, "who", StructType(NestedField(2, "city", StringType()))),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "price", DoubleType()),
    NestedField(5, "tags", ListType(6, StringType(), element_required=False)),
    NestedField(7, "at_day", LongType()),
    NestedField(8, "who_city", LongType()),
)


@pytest.fixture
def tables(world: ScanWorld, tmp_path: Path, registry: FakeRegistry) -> Tables:
    return Tables(world, tmp_path / "iceberg", registry.url)


def offsets(tables: Tables, which: str) -> list[int]:
    """The offsets that pyiceberg finds, by files that it chooses by their partitions."""
    rows = tables.load().scan(which).to_arrow().to_pylist()
    return sorted(row["kafka"]["offset"] for row in rows)


def test_the_terms_of_a_layout() -> None:
    texts = [
        "day",
        "partition",
        "who.city",
        "month(at)",
        "bucket[16](who.city)",
        "truncate[4](who.city)",
        "identity(day)",
    ]
    assert [term.name for term in terms_of(texts, is_valued=True)] == [
        "timestamp_day", "partition", "who_city", "at_month", "who_city_bucket_16", "who_city_trunc_4", "day"
    ]  # fmt: skip
    assert TABLE_CONFIGS["table.partition.by"].why_invalid(",".join(texts)) is None
    for bad in (
        "month",
        "bucket",
        "bucket[0](a)",
        "bucket(a)",
        "week(a)",
        "a b",
        "a.",
        "1a",
        "day(a",
        "truncate[x](a)",
        "",
    ):
        with pytest.raises(OptionError, match="cannot partition by"):
            terms_of([bad], is_valued=True)
        assert bad == "" or TABLE_CONFIGS["table.partition.by"].why_invalid(bad)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["day(who.city)"], "column who.city is string"),
        (["price"], "column price is double"),
        (["tags"], "column tags is list"),
        (["who"], "column who is struct"),
        (["tags.element"], "inside of list"),
        (["hour(at_day)"], "column at_day is long"),
        (["day(at)"], "has the name at_day"),
        (["who.city"], "has the name who_city"),
        (["month(at)", "year(at)"], "a column can only be used once: at"),
    ],
)
def test_what_a_table_cannot_be_partitioned_by_is_named(texts: list[str], why: str) -> None:
    with pytest.raises(OptionError, match=f"cannot partition by .*{why}"):
        layout_of(terms_of(texts, is_valued=True), SCHEMA)


async def test_columns_of_a_schema_in_a_file(world: ScanWorld, tables: Tables) -> None:
    """Identity and transforms, null values and a record without a value; two readers find each row once."""
    (key,) = await world.topic("orders", 1)
    schema = {
        "type": "object",
        "properties": {
            "who": {"type": "string"},
            "n": {"type": "integer"},
            "at": {"type": "string", "format": "date-time"},
        },
    }
    layout = ["who", "bucket[4](n)", "day(at)"]
    await tables.create_with_columns("orders", ("json-schema", json.dumps(schema)), layout)
    assert [field.name for field in tables.load().spec().fields] == ["who", "n_bucket_4", "at_day"]
    first = {"who": "a/b", "n": 1, "at": "2026-01-02T23:00:00Z"}
    values = [first, {"who": "a/b", "n": 1, "at": "2026-01-02T01:00:00Z"}, {"n": 5}, {"who": "", "n": 1}]
    await world.commit((key, batch(*(json.dumps(each).encode() for each in values), None)))
    await tables.follow()
    bucket = BucketTransform(4).transform(LongType())
    day = (datetime.date(2026, 1, 2) - DAY).days
    assert tables.placed() == {
        (0, 0): {"who": "a/b", "n_bucket_4": bucket(1), "at_day": day},
        (0, 1): {"who": "a/b", "n_bucket_4": bucket(1), "at_day": day},
        (0, 2): {"who": None, "n_bucket_4": bucket(5), "at_day": None},
        (0, 3): {"who": "", "n_bucket_4": bucket(1), "at_day": None},
        (0, 4): {"who": None, "n_bucket_4": None, "at_day": None},
    }
    assert offsets(tables, "who = 'a/b'") == [0, 1]
    address = TableAddress("test", {}, "headrace.orders", tables.load().metadata_location)
    rows = await asyncio.to_thread(rows_by_duckdb, duckdb_lines(address))
    found = sorted((row["kafka"]["offset"], row["who"], row["n"]) for row in rows.to_pylist())
    assert found == [(0, "a/b", 1), (1, "a/b", 1), (2, None, 5), (3, "", 1), (4, None, None)]


async def test_columns_of_a_table_without_a_schema(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", layout=["hour(timestamp)", "bucket[2](key)"])
    await world.write(key, 1)
    await world.write(key, 10_000)
    await tables.follow()
    await tables.check()
    assert {task.file.partition[0] for task in tables.load().scan().plan_files()} == {472222, 472225}


async def test_a_column_that_the_schema_of_a_new_table_lacks(world: ScanWorld, tables: Tables) -> None:
    await world.topic("orders", 1)
    schema = json.dumps({"type": "object", "properties": {"who": {"type": "string"}}})
    for layout, why in ((["where"], "the table has no column where"), (["day(who)"], "column who is string")):
        with pytest.raises(OptionError, match=why):
            await tables.create_with_columns("orders", ("json-schema", schema), layout)
    with pytest.raises(OptionError, match="the table has no column who"):
        await tables.create("orders", layout=["who"])
    assert tables.catalog.names() == [], "nothing half-made"


async def test_a_column_that_comes_later_and_is_widened(
    world: ScanWorld, tables: Tables, registry: FakeRegistry
) -> None:
    """Rows before the column have null there, and the layout of then; dead letters are not partitioned."""
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=("registry",), layout=["id", "truncate[10](x)"])
    assert tables.catalog.load_own("orders")[1].layout == ("id", "truncate[10](x)")
    other, narrow = registry.register(record(("x", "int"))), registry.register(record(("id", "int")))
    wide = registry.register(record(("id", "long")))
    await world.commit((key, batch(registry.avro(other, {"x": 12}), None)))
    await tables.follow()
    await world.commit((key, batch(registry.avro(narrow, {"id": 17}), b"no", registry.avro(other, {"x": 2}))))
    await tables.follow()
    await world.commit((key, batch(registry.avro(wide, {"id": 1 << 40}), registry.avro(narrow, {"id": 17}))))
    await tables.follow()
    assert tables.placed() == {
        (0, 0): {"x_trunc_10": 10},
        (0, 1): {"x_trunc_10": None},
        (0, 2): {"x_trunc_10": None, "id": 17},
        (0, 4): {"x_trunc_10": 0, "id": None},
        (0, 5): {"x_trunc_10": None, "id": 1 << 40},
        (0, 6): {"x_trunc_10": None, "id": 17},
    }
    assert [row.get("id") for row in tables.found()] == [None, None, 17, None, 1 << 40, 17]
    assert offsets(tables, "id = 17") == [2, 6]
    assert [offset for _, offset, *_ in tables.dead()] == [3]
    address = TableAddress("test", {}, "headrace.orders", tables.load().metadata_location)
    rows = await asyncio.to_thread(rows_by_duckdb, duckdb_lines(address))
    found = sorted((row["kafka"]["offset"], row["id"]) for row in rows.to_pylist())
    assert found == [(0, None), (1, None), (2, 17), (4, None), (5, 1 << 40), (6, 17)]


async def test_a_column_with_a_type_that_the_transform_does_not_take_pauses_the_table(
    world: ScanWorld, tables: Tables
) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=("json",), layout=["day", "price"])
    await world.commit((key, batch(b'{"n": 1}')))
    await tables.follow()
    await world.commit((key, batch(b'{"price": 1.5}')))
    done = await tables.follow()
    assert (done.condition, done.reason) == (Condition.PAUSED, "cannot partition by price: column price is double")
    assert [row["kafka"]["offset"] for row in tables.found()] == [0]
    await tables.create("orders", name="named", values=("json",), layout=["day"])
    await world.commit((key, batch(b'{"timestamp_day": 1}')))
    done = await tables.follow("named")
    assert (done.condition, done.reason) == (
        Condition.PAUSED, "column timestamp_day has the name of a partition field of the table"
    )  # fmt: skip


async def test_a_partition_field_that_a_user_removed_stays_away(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=("json",), layout=["who"])
    await world.commit((key, batch(b'{"who": "a"}')))
    await tables.follow()
    with tables.load().update_spec() as change:
        change.remove_field("who")
    await world.commit((key, batch(b'{"who": "b", "new": 1}')))
    await tables.follow()
    assert [row["who"] for row in tables.found()] == ["a", "b"]
    assert tables.placed() == {(0, 0): {"who": "a"}, (0, 1): {}}
