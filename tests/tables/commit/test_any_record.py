"""One record of a client, of any kind: it is a row, a dead letter, or pauses its table. It is never taken for a catalog
that is away.

The values are drawn from a seed, with what is at the edge of each type; rows are written as pyiceberg writes them, into
nothing.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

import fastavro
import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from headrace.tables.catalog import with_columns
from headrace.tables.commit.file_names import name_files
from headrace.tables.commit.limits import rows_at_fault, without_faults
from headrace.tables.layout import layout_of, terms_of
from headrace.tables.rows import VALUED_SCHEMA
from headrace.tables.state import Definition
from headrace.tables.values.avro import AvroSchema
from headrace.tables.values.formats import GivenSchema
from headrace.tables.values.inferred import InferredJson
from headrace.tables.values.json_schema import JsonSchema
from headrace.tables.values.open import ChunkOpener, OpenedChunk, Tolerance, ValueFormat
from headrace.tables.values.protobuf import ProtobufSchema
from tests.tables.registry import avro_bytes
from tests.tables.values.test_apart import raw
from tests.tables.values.test_value_columns import AVRO

pytestmark = pytest.mark.requirement("X11")

TEXTS = ["", "x", "a/b", "..", "a=b", "\0", "x" * 300, "Ж" * 50, "\U0001f600" * 100, "NaN", "null", "%", "'\"\\"]
NUMBERS = [0, -1, 1, 2**31 - 1, -(2**31), 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 10**18, 253402300800000000]
REALS = [0.0, -0.0, 0.5, 1e308, -1e308, 5e-324]
SHAPES = {"avro": 60, "json": 60, "json-schema": 40, "protobuf": 60}
MANY = 80
"""Factor of the records in `make test-all`."""


def any_json(rng: random.Random, depth: int = 0) -> Any:
    """A JSON value."""
    kind = rng.randrange(7 if depth < 3 else 5)
    if kind == 5:
        return [any_json(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == 6:
        return {rng.choice(TEXTS): any_json(rng, depth + 1) for _ in range(rng.randrange(3))}
    return rng.choice([None, rng.choice(TEXTS), rng.choice(NUMBERS), rng.choice(REALS), rng.random() < 0.5])


def some_bytes(rng: random.Random, value: bytes) -> bytes:
    """The value, or with other bytes at its end or inside."""
    if rng.random() < 0.5 or not value:
        return value
    at = rng.randrange(len(value))
    return value[:at] + rng.randbytes(rng.randrange(6)) + value[at + rng.randrange(3) :]


def avro(rng: random.Random) -> tuple[ValueFormat, bytes]:
    """A value of one Avro type, with the logical type's or with any number."""
    _, kind, _, value, _ = rng.choice(AVRO)
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
    data = avro_bytes(fastavro.parse_schema(schema), {"f": value})
    if isinstance(kind, dict) and kind.get("type") in ("int", "long") and rng.random() < 0.7:
        most = 2 ** (31 if kind["type"] == "int" else 63)
        number = max(-most, min(most - 1, rng.choice(NUMBERS)))
        data = avro_bytes(
            fastavro.parse_schema({**schema, "fields": [{"name": "f", "type": kind["type"]}]}), {"f": number}
        )
    return GivenSchema(AvroSchema("s", json.dumps(schema))), some_bytes(rng, data)


def json_value(rng: random.Random) -> tuple[ValueFormat, bytes]:
    return InferredJson(), some_bytes(rng, json.dumps({"f": any_json(rng), "g": any_json(rng)}).encode())


def json_of_schema(rng: random.Random) -> tuple[ValueFormat, bytes]:
    times = ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-02T03:04:05Z", "0000-01-01T00:00:00Z"]
    kind, value = rng.choice(
        [({"type": "string", "format": "date-time"}, rng.choice(times)), ({"type": "integer"}, rng.choice(NUMBERS)),
         ({"type": "number"}, rng.choice(NUMBERS)), ({"type": "string", "format": "date"}, times[0][:10]),
         ({"type": "string"}, rng.choice(TEXTS)), ({}, any_json(rng))]
    )  # fmt: skip
    schema = JsonSchema("s", json.dumps({"type": "object", "properties": {"f": kind}}))
    return GivenSchema(schema), some_bytes(rng, json.dumps({"f": value}).encode())


class _Protobuf:
    """Implements ValueFormat."""

    def __init__(self, schema: ProtobufSchema) -> None:
        self._schema = schema

    def begin(self, values: object) -> None:
        """Do nothing."""

    def open(self, value: bytes) -> Any:
        return self._schema.open(value)


def protobuf(rng: random.Random) -> tuple[ValueFormat, bytes]:
    """A message with a field of each scalar type, and a Timestamp, and any number or bytes in one of them."""
    import base64

    file = FileDescriptorProto(
        name="m.proto", package="m", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    message = file.message_type.add(name="M")
    kinds = [kind for kind in FieldDescriptorProto.Type.values() if kind not in (10, 11, 14)]
    for kind in kinds:
        message.field.add(name=f"f{kind}", number=kind, type=kind, label=1)  # type: ignore[arg-type]
    message.field.add(name="at", number=50, type=11, label=1, type_name=".google.protobuf.Timestamp")  # type: ignore[arg-type]
    schema = ProtobufSchema("s", base64.b64encode(file.SerializeToString()).decode())
    number = _varint(rng.choice(NUMBERS))
    if rng.random() < 0.5:
        time = b"\x08" + number
        return _Protobuf(schema), some_bytes(rng, b"\0" + _varint(50 << 3 | 2) + _varint(len(time)) + time)
    kind = rng.choice([3, 4, 5, 8, 13, 17, 18])
    return _Protobuf(schema), some_bytes(rng, b"\0" + _varint(kind << 3) + number)


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


FORMATS: dict[str, Callable[[random.Random], tuple[ValueFormat, bytes]]] = {
    "avro": avro, "json": json_value, "json-schema": json_of_schema, "protobuf": protobuf,
}  # fmt: skip


def table_with(columns: pa.StructType, rng: random.Random) -> TableMetadata:
    """A table's metadata with these columns, partitioned by one of them where that works."""
    schema = with_columns(VALUED_SCHEMA, columns)
    spec = layout_of([], schema)[0]
    for column in rng.sample([each.name for each in columns], min(1, len(columns))):
        try:
            spec, _ = layout_of(terms_of([f"identity({column})"], is_valued=True), schema)
        except Exception:  # a type that is no partition
            continue
    metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, "file:///t", {})
    name_files(metadata.properties, metadata.table_uuid)
    return metadata


def opened_with(form: ValueFormat, value: bytes, rng: random.Random) -> tuple[OpenedChunk, TableMetadata]:
    """One record as a worker opens it: the columns first."""
    schema = schema_to_pyarrow(VALUED_SCHEMA, include_field_ids=False)
    columns = ChunkOpener(form, schema, Tolerance.ALL).open(raw(value)).columns
    metadata = table_with(columns, rng)
    wide = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
    return ChunkOpener(form, wide, Tolerance.ALL).open(raw(value)), metadata


def seeds(count: int) -> Iterator[Any]:
    for name, shapes in SHAPES.items():
        yield pytest.param(name, shapes, id=f"{name}-few")
        yield pytest.param(name, shapes * count, id=f"{name}-many", marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "count"), list(seeds(MANY)))
def test_one_record_of_any_kind_is_a_row_or_a_dead_letter(name: str, count: int) -> None:
    seed = random.randrange(2**32) if count > SHAPES[name] else 7
    rng, rows = random.Random(seed), 0
    definition = Definition("c", "t", uuid.UUID(int=1), "earliest", "", "json", "", "all")
    for number in range(count):
        form, value = FORMATS[name](rng)
        opened, metadata = opened_with(form, value, rng)
        told = f"seed={seed} number={number} value={value!r}"
        assert (opened.rows.num_rows, len(opened.dead)) in ((1, 0), (0, 1)), told
        if rows_at_fault(metadata, opened.rows):
            opened = without_faults(metadata, definition, opened) or opened
            assert len(opened.dead) == 1, told
        rows += opened.rows.num_rows
    assert rows > count // 10, "some fit"


def test_a_row_that_cannot_be_written_is_found_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.tables.commit import limits

    write = limits._dataframe_to_data_files

    def fails(metadata: TableMetadata, rows: pa.Table, io: Any) -> Any:
        if "poison" in rows.column("f").to_pylist():
            raise ZeroDivisionError("a bug of a library")
        return write(metadata, rows, io)

    monkeypatch.setattr(limits, "_dataframe_to_data_files", fails)
    form = InferredJson()
    values = [json.dumps({"f": "poison" if n in (3, 70) else "x"}).encode() for n in range(100)]
    metadata = table_with(pa.struct([("f", pa.large_string())]), random.Random(1))
    schema = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
    for tolerance, dead, rows, cut in (("all", [3, 70], 98, None), ("none", [], 3, 3)):
        opened = ChunkOpener(form, schema, Tolerance(tolerance)).open(raw(*values))
        told = Definition("c", "t", uuid.UUID(int=1), "earliest", "", "json", "", tolerance)
        fitting = without_faults(metadata, told, opened)
        assert fitting is not None
        assert [each.start for each in fitting.dead] == dead
        assert fitting.rows.num_rows == rows
        assert [each.offset for each in fitting.cuts.values()] == ([] if cut is None else [cut])
        assert all("ZeroDivisionError: a bug of a library" in each.reason for each in fitting.cuts.values())
    judge = limits.WritableJudge(ChunkOpener(form, schema, Tolerance.ALL), metadata)
    reasons = judge.reasons(raw(*values[2:4]))
    assert (reasons[0], "a bug of a library" in reasons[1]) == ("", True)
