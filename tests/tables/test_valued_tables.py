"""Tables with a schema: columns follow the values, what does not fit is a dead letter, and what cannot be followed
pauses the table.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from headrace.scan.errors import OptionError
from headrace.storage.errors import UnavailableError
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec
from headrace.tables.catalog import view_of
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.listing import TableAddress, duckdb_lines
from headrace.tables.looking import Condition
from headrace.tables.open_tables import Choice, decide, decide_letters
from headrace.tables.state import PAUSED, TOLERANCE, Follows, standing_of
from headrace.tables.values import open as opening
from tests.spark.world import TIME_MS, ScanWorld
from tests.tables.duckdb_reader import rows_by_duckdb
from tests.tables.history import expire_all_but_the_newest, rewrite
from tests.tables.registry import FakeRegistry, avro_bytes, wire
from tests.tables.values.test_value_columns import AVRO
from tests.tables.world import Tables

pytestmark = pytest.mark.requirement("X11")

REGISTRY, JSON = ("registry",), ("json",)


def batch(*values: Any, key: bytes | None = b"k", time_ms: int = TIME_MS) -> bytes:
    """A batch with these values; what is not bytes is sent as JSON."""
    made = [
        Record(n, time_ms + n, key, each if each is None or isinstance(each, bytes) else json.dumps(each).encode(),
               [("h", b"x")] if n % 2 else [])
        for n, each in enumerate(values)
    ]  # fmt: skip
    return encode_batch(made, base_offset=0, codec=Codec.NONE)


def record(*fields: Any, name: str = "Order") -> dict[str, Any]:
    """An Avro record of (name, type)."""
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields]}


@pytest.fixture
def tables(world: ScanWorld, tmp_path: Path, registry: FakeRegistry) -> Tables:
    return Tables(world, tmp_path / "iceberg", registry.url)


def without_kafka(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "kafka"} for row in rows]


def columns(tables: Tables, name: str = "orders") -> dict[str, str]:
    return {field.name: str(field.field_type) for field in tables.load(name).schema().fields if field.name != "kafka"}


async def test_columns_follow_the_schemas_of_a_registry_without_rewriting(
    world: ScanWorld, tables: Tables, registry: FakeRegistry
) -> None:
    (key,) = await world.topic("orders", 1)
    first = registry.register(
        record(("id", "int"), ("price", "float"), ("who", record(("name", "string"), name="Who")))
    )
    address = registry.register(record(("zip", "string"), name="Address"), subject="address")
    second = registry.register(
        record(
            ("id", "long"), ("price", ["null", "double"]), ("ship", ["null", "Address"]),
            ("who", record(("name", ["null", "string"]), ("age", "int"), name="Who")),
        ),
        references=[{"name": "Address", "subject": "address", "version": 1}],
    )  # fmt: skip
    assert address == 2
    await tables.create("orders", values=REGISTRY, layout=["day", "partition"])
    await world.commit((key, batch(registry.avro(first, {"id": 1, "price": 0.5, "who": {"name": "a"}}), None)))
    await tables.follow()
    assert columns(tables) == {"id": "int", "price": "float", "who": "struct<13: name: optional string>"}
    files = tables.files()
    later = {"id": 1 << 40, "price": None, "ship": {"zip": "1010"}, "who": {"name": None, "age": 7}}
    old = {"id": 2, "price": 1.5, "who": {"name": "b"}}
    await world.commit((key, batch(registry.avro(second, later), registry.avro(first, old))))
    await tables.follow()
    assert [columns(tables)[name] for name in ("id", "price")] == ["long", "double"]
    assert files < tables.files(), "nothing was rewritten"
    rows = tables.found()
    assert without_kafka(rows) == [
        {"id": 1, "price": 0.5, "who": {"name": "a", "age": None}, "ship": None},
        {"id": None, "price": None, "who": None, "ship": None},
        {"id": 1 << 40, "price": None, "who": {"name": None, "age": 7}, "ship": {"zip": "1010"}},
        {"id": 2, "price": 1.5, "who": {"name": "b", "age": None}, "ship": None},
    ]
    kafka = rows[1]["kafka"]
    assert (kafka["key"], kafka["offset"], kafka["partition"]) == (b"k", 1, 0)
    assert kafka["headers"] == [{"key": "h", "value": b"x"}]
    assert kafka["timestamp"].timestamp() * 1_000 == TIME_MS + 1
    assert tables.dead() == []


async def test_a_schema_that_cannot_be_followed_pauses_the_table_and_a_user_decides(
    world: ScanWorld, tables: Tables, registry: FakeRegistry
) -> None:
    a, b = await world.topic("orders", 2)
    good, bad = registry.register(record(("id", "int"))), registry.register(record(("id", "string")))
    await tables.create("orders", values=REGISTRY)
    value = [registry.avro(good, {"id": n}) for n in range(4)]
    await world.commit((a, batch(value[0], registry.avro(bad, {"id": "x"}), value[1])), (b, batch(value[2], value[3])))
    done = await tables.follow()
    assert done.condition is Condition.PAUSED
    assert done.reason == "partition 0, offset 1: schema 2: column id is int, and the value has string"
    assert [row["id"] for row in tables.found()] == [0, 2, 3], "what is before it, and the other partition"
    assert (await tables.round()).reason == done.reason, "the reason is in the table"
    assert dict(done.lag) == {0: 2, 1: 0}
    tables.catalog.set_property("orders", PAUSED, "")
    assert (await tables.follow()).reason == done.reason
    tables.catalog.set_property("orders", TOLERANCE, "all")
    tables.catalog.set_property("orders", PAUSED, "")
    assert (await tables.follow()).condition is Condition.FOLLOWING
    assert [row["id"] for row in tables.found()] == [0, 1, 2, 3]
    assert [(p, o, reason) for p, o, _, reason in tables.dead()] == [
        (0, 1, "schema 2: column id is int, and the value has string")
    ]


async def test_records_that_do_not_fit_are_dead_letters_once(
    world: ScanWorld, tables: Tables, registry: FakeRegistry
) -> None:
    (key,) = await world.topic("orders", 1)
    schema = registry.register(record(("id", "int")))
    good = registry.avro(schema, {"id": 1})
    await tables.create("orders", values=REGISTRY)
    await world.commit((key, batch(good, b"", b"text", wire(99, b"\0"), wire(schema, b"\x80"), good + b"\0", good)))
    done = await tables.follow()
    assert done.condition is Condition.FOLLOWING
    assert [row["kafka"]["offset"] for row in tables.found()] == [0, 6]
    reasons = [reason for *_, reason in tables.dead()]
    assert [offset for _, offset, *_ in tables.dead()] == [1, 2, 3, 4, 5]
    assert reasons[0] == reasons[1] == "not in the wire format of a schema registry: a zero byte and a schema's id"
    assert reasons[2] == "the schema registry does not know schema 99"
    assert reasons[3].startswith("not a value of schema 1: ")
    assert reasons[4] == "not a value of schema 1: 1 bytes are left"
    assert (await tables.round()).outcome is None
    tables.catalog.set_property("orders", TOLERANCE, "none")
    await world.commit((key, batch(good, b"text")))
    done = await tables.follow()
    assert (done.condition, done.reason[:23]) == (Condition.PAUSED, "partition 0, offset 8: ")


async def test_nothing_is_decided_while_the_registry_is_away(
    world: ScanWorld, tables: Tables, registry: FakeRegistry
) -> None:
    (key,) = await world.topic("orders", 1)
    schema = registry.register(record(("id", "int")))
    await tables.create("orders", values=REGISTRY)
    await tables.follow()
    await world.commit((key, batch(registry.avro(schema, {"id": 1}))))
    registry.is_away = True
    with pytest.raises(UnavailableError, match="schema 1"):
        await tables.round()
    registry.is_away = False
    await tables.follow()
    assert [row["id"] for row in tables.found()] == [1]
    tables.formats.registry_url, tables.formats._registry = "", None
    await world.commit((key, batch(b"x")))
    with pytest.raises(OptionError, match=r"tables\.schema\.registry\.url is not set"):
        await tables.round()


async def test_json_brings_its_columns(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=JSON)
    await world.commit((key, batch(
        {"id": 1, "price": 5, "tags": [], "who": {}, "Kafka": "mine", "a.b": True},
        {"id": 2, "price": 1.5, "tags": ["x", None], "who": {"name": "a", "at": None}},
        {"id": None, "tags": [], "who": None, "more": [{"n": 1}, {"m": 2.0}]},
        "only text",
    )))  # fmt: skip
    await tables.follow()
    rows = without_kafka(tables.found())
    assert rows[0].pop("more") in (None, []), "pyiceberg reads a list of structs that is null as an empty one"
    assert rows[0] == {
        "id": 1, "price": 5.0, "tags": [], "who": {"name": None}, "Kafka_value": "mine", "a_b": True, "value": None,
    }  # fmt: skip
    assert (rows[1]["price"], rows[1]["tags"], rows[1]["who"]) == (1.5, ["x", None], {"name": "a"})
    assert rows[2]["more"] == [{"n": 1, "m": None}, {"n": None, "m": 2.0}]
    assert rows[3]["value"] == "only text"
    await world.commit((key, batch(
        {"id": 1.5}, {"ID": 1}, {"id": 1 << 70}, b"{", b'{"id": NaN}', {"tags": [1, "x"]}, {"price": (1 << 53) + 1},
        b'{"value": "\\ud800"}', {"id": 3, "price": 7},
    )))  # fmt: skip
    await tables.follow()
    found = [(row["id"], row["id_double"], row["price"]) for row in tables.found()[4:]]
    assert found == [(None, 1.5, None), (3, None, 7.0)], "a fraction behind integers has a second column"
    dead = {offset: reason for _, offset, _, reason in tables.dead()}
    assert dead.keys() == set(range(5, 12))
    assert dead[5] == "a JSON value: columns ID and id differ only by case"
    assert "does not fit its column" in dead[6]
    assert "NaN is not JSON" in dead[8]
    assert "does not fit its column" in dead[11]


async def test_values_of_a_schema_in_a_file(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    schema = record(("id", "int"))
    accepts = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer", "minimum": 0}}}
    await tables.create("orders", values=("avro", json.dumps(schema)), name="avro")
    await tables.create("orders", values=("json-schema", json.dumps(accepts)), name="json")
    await world.commit((key, batch(avro_bytes(schema, {"id": 7}), {"id": 3}, {"id": -1}, {"other": 1})))
    for name, ids, dead in (("avro", [7], [1, 2, 3]), ("json", [3], [0, 2, 3])):
        await tables.follow(name)
        assert [row["id"] for row in tables.found(name)] == ids
        assert [offset for _, offset, *_ in tables.dead(name)] == dead


async def test_json_schema_of_a_registry(world: ScanWorld, tables: Tables, registry: FakeRegistry) -> None:
    (key,) = await world.topic("orders", 1)
    registry.register({"type": "object", "properties": {"zip": {"type": "string"}}}, "JSON", "address")
    schema = registry.register(
        {"type": "object", "properties": {"id": {"type": "integer"}, "to": {"$ref": "address.json"}}},
        "JSON",
        references=[{"name": "address.json", "subject": "address", "version": 1}],
    )
    other = registry.register("message", "XML")
    await tables.create("orders", values=REGISTRY)
    await world.commit((key, batch(wire(schema, b'{"id": 1, "to": {"zip": "1010"}}'), wire(schema, b'{"id": "x"}'))))
    await tables.follow()
    assert without_kafka(tables.found()) == [{"id": 1, "to": {"zip": "1010"}}]
    assert tables.dead()[0][3] == "not a value of schema 2: $.id: 'x' is not of type 'integer'"
    await world.commit((key, batch(wire(other, b""))))
    done = await tables.follow()
    assert done.reason.endswith("schema 3 is of type XML: AVRO, JSON and PROTOBUF are read")


async def test_protobuf_of_a_registry(world: ScanWorld, tables: Tables, registry: FakeRegistry) -> None:
    """A schema that grows adds its column; what does not fit is a dead letter."""
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=REGISTRY)
    found = []
    for fields in (["id"], ["id", "note"]):
        message = DescriptorProto(name="Order")
        for number, name in enumerate(fields, 1):
            kind = FieldDescriptorProto.TYPE_INT64 if name == "id" else FieldDescriptorProto.TYPE_STRING
            message.field.add(name=name, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL)
        proto = FileDescriptorProto(name="order.proto", syntax="proto3", message_type=[message])
        found.append(registry.register_protobuf(proto))
    first, second = found
    values = (wire(first, b"\0\x08\x07"), wire(first, b"\0\xff"), wire(first, b"\x02\x02"), None)
    await world.commit((key, batch(*values)))
    await world.commit((key, batch(wire(second, b"\0\x08\x08\x12\x01x"))))
    await tables.follow()
    assert without_kafka(tables.found()) == [
        {"id": 7, "note": None},
        {"id": None, "note": None},
        {"id": 8, "note": "x"},
    ]
    assert [(offset, reason.partition(":")[0]) for _, offset, _, reason in tables.dead()] == [
        (1, "not a value of schema 1 (Order)"),
        (2, "schema 1 has no message with the indexes [1]"),
    ]


async def test_a_commit_names_no_more_dead_letters_than_it_may(
    world: ScanWorld, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "DEAD_RANGES_MAX", 2)
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=JSON)
    await world.commit((key, batch(*[value for n in range(5) for value in ({"id": n}, b"{")])))
    await tables.follow()
    assert [row["id"] for row in tables.found()] == list(range(5))
    assert [offset for _, offset, *_ in tables.dead()] == [1, 3, 5, 7, 9]


async def test_the_dead_letter_table_is_continued_as_its_table_is(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=JSON)
    for number in range(3):
        await world.commit((key, batch({"id": number}, b"{")))
        await tables.follow()
    letters = tables.catalog.load_dead_letters(tables.load())
    assert letters is not None
    rewrite(letters)
    expire_all_but_the_newest(tables.catalog.load("orders_dead_letters"))
    await world.commit((key, batch(b"[")))
    await tables.follow()
    assert [offset for _, offset, *_ in tables.dead()] == [1, 3, 5, 6]
    letters = tables.catalog.load("orders_dead_letters")
    newest = letters.metadata.current_snapshot()
    assert newest is not None
    assert newest.parent_snapshot_id is not None
    letters.manage_snapshots().rollback_to_snapshot(newest.parent_snapshot_id).commit()
    await world.commit((key, batch(b"]")))
    done = await tables.follow()
    assert done.condition is Condition.STOPPED
    assert done.reason.startswith("the dead-letter table: the table was rolled back")
    with pytest.raises(OptionError, match="--at offsets"):
        decide_letters(tables.catalog.load("orders_dead_letters"), Choice.ROWS)
    decide_letters(tables.catalog.load("orders_dead_letters"), Choice.OFFSETS)
    await tables.follow()
    assert [offset for _, offset, *_ in tables.dead()] == [1, 3, 5, 7], "what was rolled back stays out"


async def test_a_table_that_goes_back_takes_its_dead_letters_along(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=JSON)
    snapshots = []
    for number in range(3):
        await world.commit((key, batch({"id": number}, b"{")))
        await tables.follow()
        snapshots.append(tables.load().metadata.current_snapshot_id)
    assert snapshots[0] is not None
    tables.load().manage_snapshots().rollback_to_snapshot(snapshots[0]).commit()
    decide(tables.load(), Choice.ROWS, tables.catalog.load_dead_letters(tables.load()))
    assert [offset for _, offset, *_ in tables.dead()] == [1]
    await tables.follow()
    assert [row["id"] for row in tables.found()] == [0, 1, 2]
    assert [offset for _, offset, *_ in tables.dead()] == [1, 3, 5]


async def test_dead_letters_that_retention_removed_are_named(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=JSON)
    await world.commit((key, batch({"id": 0}, b"{", b"[", {"id": 1}, b"]")))
    while (done := await tables.round()).rows == 0:
        pass
    await world.delete_records(key, 2)
    done = await tables.round()
    assert (done.dead_letters, done.missing, done.outcome) == (2, 1, CommitOutcome.COMMITTED)
    await tables.follow()
    assert [offset for _, offset, *_ in tables.dead()] == [2, 4]
    standing = standing_of(view_of(tables.catalog.load("orders_dead_letters")))
    assert isinstance(standing, Follows)
    assert [(gap.partition, gap.start, gap.end) for gap in standing.progress.gaps] == [(0, 1, 2)]


async def test_another_table_with_the_name_is_left_alone(world: ScanWorld, tables: Tables) -> None:
    (key,) = await world.topic("orders", 1)
    await tables.create("orders", values=JSON)
    tables.catalog.catalog.create_table("headrace.orders_dead_letters", tables.load().schema())
    await world.commit((key, batch(b"{", {"id": 1})))
    done = await tables.follow()
    assert (done.condition, done.lag) == (Condition.BLOCKED, {0: 0})
    assert "headrace.orders_dead_letters is no table of a topic" in done.reason
    tables.catalog.catalog.drop_table("headrace.orders_dead_letters")
    await tables.follow()
    assert [row["id"] for row in tables.found()] == [1]
    tables.catalog.drop("orders", purge=True)
    assert tables.catalog.names() == [], "its dead letters are dropped with it"


async def test_other_readers_read_the_columns_of_each_avro_type(
    world: ScanWorld, tables: Tables, registry: FakeRegistry
) -> None:
    (key,) = await world.topic("orders", 1)
    schema = registry.register(record(*((f"f{n}", renamed(kind, n)) for n, (_, kind, *_) in enumerate(AVRO))))
    values = {f"f{n}": named(value, n) for n, (*_, value, _) in enumerate(AVRO)}
    await tables.create("orders", values=REGISTRY)
    await world.commit((key, batch(registry.avro(schema, values), None)))
    await tables.follow()
    address = TableAddress("test", {}, "headrace.orders", tables.load().metadata_location)
    by_pyiceberg = tables.found()
    assert [by_pyiceberg[0][f"f{n}"] for n in range(len(AVRO))] == [
        {f"{k}{n}" if k in ("Point", "E") else k: v for k, v in read.items()} if isinstance(read, dict) else read
        for n, (*_, read) in enumerate(AVRO)
    ]
    by_duckdb = rows_by_duckdb(duckdb_lines(address)).to_pylist()
    by_duckdb.sort(key=lambda row: row["kafka"]["offset"])
    assert [row["kafka"]["headers"] for row in by_duckdb] == [None, [{"key": "h", "value": b"x"}]]
    for row in by_pyiceberg:
        row["kafka"]["headers"] = row["kafka"]["headers"] or None  # pyiceberg reads a null list of structs as empty
    assert by_duckdb == by_pyiceberg
    assert tables.dead() == []


def renamed(schema: Any, number: int) -> Any:
    """The schema with other names: all are fields of one record."""
    text = json.dumps(schema)
    for name in ("Point", "Node", "E", "F", "D"):
        text = text.replace(f'"{name}"', f'"{name}{number}"')
    return json.loads(text)


def named(value: Any, number: int) -> Any:
    return (f"{value[0]}{number}", value[1]) if isinstance(value, tuple) else value
