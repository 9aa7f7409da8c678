"""Schemas and values become columns as the tables in tables/values/ say; pure."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

import fastavro
import pyarrow as pa

from headrace.scan.errors import OptionError
from headrace.tables.errors import MisfitError, SchemaError
from headrace.tables.state import Definition
from headrace.tables.values import columns as c
from headrace.tables.values.avro import AvroSchema
from headrace.tables.values.formats import require_format
from headrace.tables.values.inferred import DEPTH_MAX, InferredJson
from headrace.tables.values.json_schema import JsonSchema
from headrace.tables.values.open import ChunkOpener, Tolerance
from headrace.tables.values.registry import RegistryFormat
from tests.tables.registry import avro_bytes

pytestmark = pytest.mark.requirement("X11")

POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "double"}]}
NODE = {"type": "record", "name": "Node", "fields": [{"name": "v", "type": ["null", "bytes"]},
        {"name": "next", "type": ["null", "Node"]}]}  # fmt: skip
NOON = datetime.datetime(2026, 1, 2, 12)
UTC_NOON = NOON.replace(tzinfo=datetime.UTC)
ID = uuid.UUID(int=7)


def logical(kind: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


AVRO: list[tuple[str, Any, pa.DataType, Any, Any]] = [
    ("boolean", "boolean", c.BOOLEAN, True, True),
    ("int", "int", c.INT, -1, -1),
    ("long", "long", c.LONG, 1 << 62, 1 << 62),
    ("float", "float", c.FLOAT, 0.5, 0.5),
    ("double", "double", c.DOUBLE, 0.1, 0.1),
    ("bytes", "bytes", c.BINARY, b"\0", b"\0"),
    ("string", "string", c.STRING, "ä", "ä"),
    ("fixed", {"type": "fixed", "name": "F", "size": 2}, pa.binary(2), b"ab", b"ab"),
    ("enum", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, c.STRING, "B", "B"),
    ("record", POINT, pa.struct([("x", c.DOUBLE)]), {"x": 1.5}, {"x": 1.5}),
    ("array", {"type": "array", "items": ["null", "int"]}, c.list_of(c.INT), [1, None], [1, None]),
    ("map", {"type": "map", "values": "int"}, c.map_of(c.INT), {"a": 1}, [("a", 1)]),
    ("decimal", logical("bytes", "decimal", precision=6, scale=2), pa.decimal128(6, 2), decimal.Decimal("-1.50"),
     decimal.Decimal("-1.50")),
    ("date", logical("int", "date"), c.DATE, NOON.date(), NOON.date()),
    ("time-millis", logical("int", "time-millis"), c.STRING, NOON.time(), "12:00:00.000000"),
    ("time-micros", logical("long", "time-micros"), c.STRING, datetime.time(1, 2, 3, 4), "01:02:03.000004"),
    ("timestamp-millis", logical("long", "timestamp-millis"), c.TIMESTAMPTZ, UTC_NOON, UTC_NOON),
    ("timestamp-micros", logical("long", "timestamp-micros"), c.TIMESTAMPTZ, UTC_NOON, UTC_NOON),
    ("local-timestamp-millis", logical("long", "local-timestamp-millis"), c.TIMESTAMP, NOON, NOON),
    ("local-timestamp-micros", logical("long", "local-timestamp-micros"), c.TIMESTAMP, NOON, NOON),
    ("timestamp-nanos", logical("long", "timestamp-nanos"), c.LONG, 5, 5),
    ("uuid", logical("string", "uuid"), c.STRING, ID, str(ID)),
    ("duration", logical("fixed", "duration", name="D", size=12), pa.binary(12), b"x" * 12, b"x" * 12),
    ("unknown logical type", logical("string", "color"), c.STRING, "red", "red"),
    ("null and a type", ["string", "null"], c.STRING, None, None),
    ("null and a record", ["null", POINT], pa.struct([("x", c.DOUBLE)]), {"x": 1.0}, {"x": 1.0}),
    ("types", ["null", "int", "string"], pa.struct([("int", c.INT), ("string", c.STRING)]), "s",
     {"int": None, "string": "s"}),
    ("numbers", ["int", "long", "float", "double"], pa.struct([("long", c.LONG), ("double", c.DOUBLE)]), 5,
     {"long": 5, "double": None}),
    ("records", [POINT, {"type": "enum", "name": "E", "symbols": ["A"]}],
     pa.struct([("Point", pa.struct([("x", c.DOUBLE)])), ("E", c.STRING)]), ("E", "A"),
     {"Point": None, "E": "A"}),
    ("times", ["int", logical("long", "timestamp-millis"), logical("string", "uuid")],
     pa.struct([("int", c.INT), ("timestamp_millis", c.TIMESTAMPTZ), ("uuid", c.STRING)]), UTC_NOON,
     {"int": None, "timestamp_millis": UTC_NOON, "uuid": None}),
    ("a record inside itself", NODE, pa.struct([("v", c.BINARY), ("next", c.STRING)]),
     {"v": None, "next": {"v": b"\x01", "next": None}}, {"v": None, "next": '{"v": "01", "next": null}'}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "schema", "column", "value", "read"), AVRO, ids=[each[0] for each in AVRO])
def test_each_avro_type_is_a_column(kind: str, schema: Any, column: pa.DataType, value: Any, read: Any) -> None:
    whole = {"type": "record", "name": "R", "fields": [{"name": "f", "type": schema}, {"name": "n", "type": "null"}]}
    parsed = AvroSchema("schema", json.dumps(whole))
    assert parsed.shape.columns == pa.struct([("f", column)])
    data = avro_bytes(fastavro.parse_schema(whole), {"f": value, "n": None})
    opened = parsed.read(data)
    assert pa.array([opened], parsed.shape.columns)[0].as_py()["f"] == read


def test_a_value_that_is_no_record_is_one_column() -> None:
    for schema, columns in (("string", [("value", c.STRING)]), (["null", "int"], [("value", c.INT)]), ("null", [])):
        assert AvroSchema("s", json.dumps(schema)).shape.columns == pa.struct(columns)
    top = AvroSchema("s", json.dumps([POINT, {**POINT, "name": "Other"}]))
    assert [field.name for field in top.shape.columns] == ["Point", "Other"]
    assert top.read(avro_bytes(fastavro.parse_schema([POINT, {**POINT, "name": "Other"}]), ("Other", {"x": 1}))) == {
        "Other": {"x": 1.0}
    }


def _avro(*fields: tuple[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields]})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not an Avro schema"),
        ('{"type": "record"}', "not an Avro schema"),
        (_avro(("f", "Unknown")), "not an Avro schema"),
        (_avro(("id", "int"), ("ID", "int")), "two fields have one column: id, ID"),
        (_avro(("Kafka", "int"), ("kafka_value", "int")), "two fields have one column: Kafka_value, kafka_value"),
        (_avro(("f", logical("bytes", "decimal", precision=39))), "decimal of 39 digits"),
    ],
)
def test_what_no_table_can_have_is_named(text: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        AvroSchema("schema 7", text)


def test_values_that_the_schema_does_not_describe_are_misfits() -> None:
    fields = ("f", logical("bytes", "decimal", precision=2)), ("t", logical("long", "timestamp-micros"))
    parsed = AvroSchema("schema 7", _avro(*fields))
    raw = fastavro.parse_schema(json.loads(_avro(("f", "bytes"), ("t", "long"))))
    for value in ({"f": b"\x7f\xff", "t": 0}, {"f": b"", "t": 1 << 62}):
        with pytest.raises(MisfitError, match="not a value of schema 7"):
            parsed.read(avro_bytes(raw, value))


WIDE: list[tuple[pa.DataType, pa.DataType, pa.DataType | None]] = [
    (c.INT, c.LONG, c.LONG), (c.LONG, c.INT, c.LONG), (c.FLOAT, c.DOUBLE, c.DOUBLE), (c.DOUBLE, c.INT, c.DOUBLE),
    (pa.decimal128(5, 2), pa.decimal128(7, 2), pa.decimal128(7, 2)), (pa.decimal128(5, 2), pa.decimal128(5, 3), None),
    (c.LONG, c.DOUBLE, None), (c.INT, c.STRING, None), (c.STRING, c.BINARY, None), (c.DATE, c.TIMESTAMP, None),
    (c.TIMESTAMP, c.TIMESTAMPTZ, None), (pa.binary(2), pa.binary(3), None), (c.list_of(c.INT), c.INT, None),
    (c.list_of(c.INT), c.list_of(c.LONG), c.list_of(c.LONG)), (c.map_of(c.INT), c.map_of(c.LONG), c.map_of(c.LONG)),
    (pa.struct([("a", c.INT)]), pa.struct([("b", c.INT)]), pa.struct([("a", c.INT), ("b", c.INT)])),
    (pa.struct([("a", c.INT)]), pa.struct([("A", c.INT)]), None),
]  # fmt: skip


@pytest.mark.parametrize(("have", "shape", "both"), WIDE, ids=lambda each: str(each))
def test_columns_only_change_as_iceberg_changes_them(
    have: pa.DataType, shape: pa.DataType, both: pa.DataType | None
) -> None:
    if both is None:
        with pytest.raises(SchemaError, match=r"column|differ"):
            c.widened(have, shape, "f")
    else:
        assert c.widened(have, shape, "f") == both
        assert (c.widened(have, shape) is have) == (both == have)


def test_names_become_columns_that_every_engine_takes() -> None:
    names = {"a.b": "a_b", "a b": "a_b", "": "_", "1st": "_1st", "Kafka": "Kafka_value", "größe": "größe"}
    assert {name: c.column_name(name, is_top=True) for name in names} == names
    assert c.column_name("kafka") == "kafka", "inside of others"


JSON_SCHEMAS: list[tuple[Any, pa.DataType, Any, Any]] = [
    ({"type": "string"}, c.STRING, "a", "a"),
    ({"type": ["null", "integer"]}, c.LONG, 5, 5),
    ({"type": "number"}, c.DOUBLE, 5, 5.0),
    ({"type": "boolean"}, c.BOOLEAN, True, True),
    ({"type": "string", "format": "date"}, c.DATE, "2026-01-02", NOON.date()),
    ({"type": "string", "format": "date-time"}, c.TIMESTAMPTZ, "2026-01-02T12:00:00Z", UTC_NOON),
    ({"type": "array", "items": {"type": "integer"}}, c.list_of(c.LONG), [1, 2], [1, 2]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, c.map_of(c.LONG), {"a": 1}, [("a", 1)]),
    ({"properties": {"a b": {"type": "integer"}}}, pa.struct([("a_b", c.LONG)]), {"a b": 1, "more": 2}, {"a_b": 1}),
    ({"oneOf": [{"type": "null"}, {"type": "string"}]}, c.STRING, "x", "x"),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, c.STRING, 1, "1"),
    ({"type": "object"}, c.STRING, {"a": [1]}, '{"a": [1]}'),
    ({}, c.STRING, [1, "x"], '[1, "x"]'),
    (True, c.STRING, 1, "1"),
    ({"$ref": "#/$defs/node"}, pa.struct([("v", c.LONG), ("next", c.STRING)]),
     {"v": 1, "next": {"v": 2, "next": None}}, {"v": 1, "next": '{"v": 2, "next": null}'}),
]  # fmt: skip
NODES = {
    "node": {"type": ["object", "null"], "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
}


@pytest.mark.parametrize(("schema", "column", "value", "read"), JSON_SCHEMAS)
def test_each_part_of_a_json_schema_is_a_column(schema: Any, column: pa.DataType, value: Any, read: Any) -> None:
    parsed = JsonSchema("schema", json.dumps({"$defs": NODES, "properties": {"f": schema}}))
    assert parsed.shape.columns == pa.struct([("f", column)])
    opened = parsed.read(json.dumps({"f": value}).encode())
    assert opened["f"] == read
    assert pa.array([opened], parsed.shape.columns)[0].as_py()["f"] == read


@pytest.mark.parametrize("text", ["{", '{"type": "strange"}', '{"properties": {"f": {"$ref": "elsewhere.json"}}}', "5"])
def test_what_is_no_json_schema_is_named(text: str) -> None:
    with pytest.raises(SchemaError, match="schema 7: not a JSON Schema"):
        JsonSchema("schema 7", text)


@pytest.mark.parametrize("value", [b"\xff", b"{", b'{"t": "2026-01-02T12:00:00"}', b'{"t": "yesterday"}', b'{"t": 5}'])
def test_values_that_a_json_schema_refuses_are_misfits(value: bytes) -> None:
    parsed = JsonSchema("s", json.dumps({"properties": {"t": {"type": "string", "format": "date-time"}}}))
    with pytest.raises(MisfitError):
        parsed.read(value)


def test_json_that_is_too_deep_or_adds_columns_without_an_end_is_a_misfit() -> None:
    form = InferredJson()
    for depth in (DEPTH_MAX + 1, 100_000):
        with pytest.raises(MisfitError):
            form.open(b'{"a":' * depth + b"1" + b"}" * depth)
    schema = pa.schema([pa.field(c.KAFKA, pa.struct([("partition", pa.int32())]))])
    opener = ChunkOpener(form, schema, Tolerance.ALL)
    values = [json.dumps({f"n{n}": n for n in range(c.COLUMNS_MAX + 1)}).encode(), b'{"a": 1}']
    raw = pa.table({"partition": [0, 0], "offset": [0, 1], "value": values})
    assert opener.reasons(raw) == [f"a JSON value: the table would have more than {c.COLUMNS_MAX} columns", ""]


def test_bad_options_are_named() -> None:
    def definition(*values: str) -> Definition:
        return Definition("c", "t", ID, "earliest", "", *values)

    for values, has_file, reason in (
        (("csv",), False, "unknown value format: csv"),
        (("avro",), False, "a schema file is needed for avro"),
        (("json", "{}"), True, "does not fit json"),
        (("json", "", "some"), False, "unknown tolerance: some"),
    ):
        with pytest.raises(OptionError, match=reason):
            require_format(definition(*values), has_file=has_file)
    with pytest.raises(SchemaError):
        require_format(definition("avro", "{"), has_file=True)
    columns = require_format(definition("avro", '"int"'), has_file=True)
    assert columns == pa.struct([("value", c.INT)])
    with pytest.raises(OptionError, match=r"tables\.schema\.registry\.url"):
        RegistryFormat("nowhere")
