"""Protobuf messages become columns: random schemas and values by google.protobuf's encoder, and what is refused."""

from __future__ import annotations

import base64
import datetime
import decimal
import struct
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

import pyarrow as pa
from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tables.errors import MisfitError, SchemaError
from headrace.tables.values import columns as c
from headrace.tables.values.protobuf import ProtobufSchema, message_indexes
from headrace.tables.values.registry import RegistryFormat
from tests.seeds import examples
from tests.tables.registry import FakeRegistry, wire

pytestmark = pytest.mark.requirement("X11")

F = FieldDescriptorProto
UNSIGNED = pa.decimal128(20, 0)


class Scalar(NamedTuple):
    """A type, its column, its values, its zero, and how a value is read."""

    type: int
    column: pa.DataType
    values: st.SearchStrategy[Any]
    zero: Any
    read: Any = staticmethod(lambda value: value)


def single(value: float) -> float:
    """Return the value as a float of 32 bits."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


I32, I64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats(allow_nan=False, width=32)
SCALARS = [
    *(Scalar(kind, c.INT, I32, 0) for kind in (F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32)),
    *(Scalar(kind, c.LONG, I64, 0) for kind in (F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64)),
    *(Scalar(kind, c.LONG, st.integers(0, (1 << 32) - 1), 0) for kind in (F.TYPE_UINT32, F.TYPE_FIXED32)),
    *(
        Scalar(kind, UNSIGNED, st.integers(0, (1 << 64) - 1), decimal.Decimal(0), decimal.Decimal)
        for kind in (F.TYPE_UINT64, F.TYPE_FIXED64)
    ),
    Scalar(F.TYPE_FLOAT, c.FLOAT, FLOATS, 0.0, single),
    Scalar(F.TYPE_DOUBLE, c.DOUBLE, st.floats(allow_nan=False), 0.0),
    Scalar(F.TYPE_BOOL, c.BOOLEAN, st.booleans(), False),
    Scalar(F.TYPE_STRING, c.STRING, st.text(st.characters(exclude_categories=["Cs"]), max_size=5), ""),
    Scalar(F.TYPE_BYTES, c.BINARY, st.binary(max_size=5), b""),
]
KEYS = [each for each in SCALARS if each.column in (c.INT, c.LONG, c.BOOLEAN, c.STRING)]


class Made(NamedTuple):
    """A message type with one value: the column, what to set by field, and what is read."""

    descriptor: DescriptorProto
    column: pa.StructType
    given: dict[str, Any]
    read: dict[str, Any]


@st.composite
def messages(draw: st.DrawFn, name: str = "M", depth: int = 2) -> Made:
    """A message type of proto3 with some fields, nested ones with the types inside it."""
    descriptor = DescriptorProto(name=name)
    columns, given_values, read = [], {}, {}
    for number in range(1, draw(st.integers(1, 4)) + 1):
        field = descriptor.field.add(name=f"f{number}", number=number, label=F.LABEL_OPTIONAL)
        kind = draw(st.sampled_from(["plain", "optional", "repeated", "map", "enum", *(["message"] * (depth > 0))]))
        if kind == "message":
            inner = draw(messages(f"N{number}", depth - 1))
            descriptor.nested_type.append(inner.descriptor)
            field.type, field.type_name = F.TYPE_MESSAGE, inner.descriptor.name
            column: pa.DataType = inner.column
            value, seen, zero = inner.given, inner.read, None
        elif kind == "enum":
            enum = descriptor.enum_type.add(name=f"E{number}")
            for at in range(2):
                enum.value.add(name=f"E{number}_V{at}", number=at)
            field.type, field.type_name = F.TYPE_ENUM, enum.name
            value = draw(st.integers(0, 3))
            column, seen, zero = c.STRING, f"E{number}_V{value}" if value < 2 else str(value), f"E{number}_V0"
        else:
            scalar = draw(st.sampled_from(SCALARS))
            field.type, column, zero = scalar.type, scalar.column, scalar.zero
            value = draw(scalar.values)
            seen = scalar.read(value)
            if kind == "optional":
                field.proto3_optional, zero = True, None
                descriptor.oneof_decl.add(name=f"_f{number}")
                field.oneof_index = len(descriptor.oneof_decl) - 1
            elif kind == "repeated":
                field.label, column, zero = F.LABEL_REPEATED, c.list_of(column), []
                value = draw(st.lists(scalar.values, max_size=3))
                seen = [scalar.read(each) for each in value]
            elif kind == "map":
                key = draw(st.sampled_from(KEYS))
                entry = descriptor.nested_type.add(name=f"F{number}Entry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, type=key.type, label=F.LABEL_OPTIONAL)
                entry.field.add(name="value", number=2, type=scalar.type, label=F.LABEL_OPTIONAL)
                field.label, field.type, field.type_name = F.LABEL_REPEATED, F.TYPE_MESSAGE, entry.name
                column, zero = c.map_of(column), []
                value = draw(st.dictionaries(key.values, scalar.values, max_size=3))
                as_text = {True: "true", False: "false"} if key.column == c.BOOLEAN else {}
                seen = [(as_text.get(k, str(k)), scalar.read(v)) for k, v in value.items()]
        columns.append((field.name, column))
        if draw(st.booleans()):
            given_values[field.name], read[field.name] = value, seen
        else:
            read[field.name] = zero
    return Made(descriptor, pa.struct(columns), given_values, read)


def fill(message: Any, values: dict[str, Any]) -> Any:
    for name, value in values.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        if isinstance(value, dict) and not field.is_repeated:
            getattr(message, name).SetInParent()
            fill(getattr(message, name), value)
        elif isinstance(value, dict):
            getattr(message, name).update(value)
        elif isinstance(value, list):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return message


def base64_of(proto: FileDescriptorProto) -> str:
    return base64.b64encode(proto.SerializeToString()).decode()


def file_of(*descriptors: DescriptorProto, imports: Any = (), syntax: str = "proto3") -> FileDescriptorProto:
    return FileDescriptorProto(
        name="f.proto", package="p", syntax=syntax, message_type=descriptors, dependency=list(imports)
    )


def message_of(proto: FileDescriptorProto, name: str, *others: FileDescriptorProto) -> Any:
    """An empty message of google.protobuf."""
    pool = DescriptorPool()
    for each in (*others, proto):
        pool.Add(each)
    return GetMessageClass(pool.FindMessageTypeByName(f"{proto.package}.{name}"))()


def as_row(schema: ProtobufSchema, value: bytes) -> Any:
    shape, opened = schema.open(value)
    return pa.array([opened], shape.columns)[0].as_py()


def ordered(value: Any) -> Any:
    """The value with the entries of maps in an order."""
    if isinstance(value, dict):
        return {key: ordered(each) for key, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return sorted(value)
    return value


@settings(max_examples=examples(60), deadline=None)
@given(messages())
def test_random_messages_are_read_as_they_were_written(made: Made) -> None:
    proto = file_of(made.descriptor)
    schema = ProtobufSchema("schema 1", base64_of(proto))
    data = fill(message_of(proto, "M"), made.given).SerializeToString()
    assert schema.open(b"\0" + data)[0].columns == made.column
    assert ordered(as_row(schema, b"\0" + data)) == ordered(made.read)


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=6), st.binary(max_size=3))
def test_message_indexes_are_zigzag_varints(indexes: list[int], rest: bytes) -> None:
    def varint(number: int) -> bytes:
        number, found = number << 1, b""
        while number > 0x7F:
            found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
        return found + bytes([number])

    data = varint(len(indexes)) + b"".join(map(varint, indexes))
    assert message_indexes(data + rest) == (tuple(indexes), len(data))


def field(name: str, number: int, kind: int, type_name: str = "", **more: Any) -> FieldDescriptorProto:
    label = more.pop("label", F.LABEL_OPTIONAL)
    return F(name=name, number=number, type=kind, type_name=type_name or None, label=label, **more)


def test_nested_messages_are_found_by_their_indexes() -> None:
    inner = DescriptorProto(name="Inner", field=[field("x", 1, F.TYPE_INT32)])
    proto = file_of(
        DescriptorProto(name="A"), DescriptorProto(name="B", nested_type=[DescriptorProto(name="X"), inner])
    )
    schema = ProtobufSchema("schema 1", base64_of(proto))
    assert as_row(schema, bytes([4, 2, 2]) + b"\x08\x05") == {"x": 5}
    assert schema.open(b"\0")[0].columns == pa.struct([]), "a message without fields has no column"
    for indexes in ([2, 4], [4, 2, 4], [6, 2, 2, 0], [2, 1]):
        with pytest.raises(MisfitError, match="no message with the indexes"):
            schema.open(bytes(indexes))
    for data in (b"", b"\x80", b"\x04\x02", b"\xff" * 12, b"\x01", b"\xff\xff\x03"):
        with pytest.raises(MisfitError, match="wire format"):
            schema.open(data)


WELL_KNOWN = [
    ("google.protobuf.Timestamp", c.TIMESTAMPTZ, timestamp_pb2.Timestamp(seconds=-1, nanos=1_999),
     datetime.datetime(1969, 12, 31, 23, 59, 59, 1, datetime.UTC)),
    ("google.protobuf.Duration", c.STRING, duration_pb2.Duration(seconds=1, nanos=5), '"1.000000005s"'),
    ("google.protobuf.StringValue", c.STRING, wrappers_pb2.StringValue(value=""), ""),
    ("google.protobuf.UInt64Value", UNSIGNED, wrappers_pb2.UInt64Value(value=(1 << 64) - 1),
     decimal.Decimal((1 << 64) - 1)),
    ("google.protobuf.Value", c.STRING, struct_pb2.Value(number_value=1.5), "1.5"),
]  # fmt: skip
FILES = {
    "Timestamp": "timestamp", "Duration": "duration", "StringValue": "wrappers", "UInt64Value": "wrappers",
    "Value": "struct",
}  # fmt: skip


@pytest.mark.parametrize(("name", "column", "value", "read"), WELL_KNOWN, ids=[each[0] for each in WELL_KNOWN])
def test_well_known_types(name: str, column: pa.DataType, value: Any, read: Any) -> None:
    imports = [f"google/protobuf/{FILES[name.rpartition('.')[2]]}.proto"]
    fields = [field("f", 1, F.TYPE_MESSAGE, f".{name}"), field("g", 2, F.TYPE_MESSAGE, f".{name}")]
    schema = ProtobufSchema("schema 1", base64_of(file_of(DescriptorProto(name="M", field=fields), imports=imports)))
    data = value.SerializeToString()
    wired = b"\0\x0a" + bytes([len(data)]) + data
    assert schema.open(wired)[0].columns == pa.struct([("f", column), ("g", column)])
    assert as_row(schema, wired) == {"f": read, "g": None}


def test_oneofs_recursion_and_kafka() -> None:
    node = DescriptorProto(
        name="Node",
        field=[
            field("kafka", 1, F.TYPE_STRING),
            field("next", 2, F.TYPE_MESSAGE, ".p.Node"),
            field("a", 3, F.TYPE_INT32, oneof_index=0),
            field("b", 4, F.TYPE_STRING, oneof_index=0),
        ],
    )
    node.oneof_decl.add(name="choice")
    proto = file_of(node)
    message = message_of(proto, "Node")
    message.next.kafka, message.next.a, message.b = "inner", 0, ""
    schema = ProtobufSchema("schema 1", base64_of(proto))
    row = as_row(schema, b"\0" + message.SerializeToString())
    assert row == {"kafka_value": "", "next": '{"kafka": "inner", "a": 0}', "a": None, "b": ""}


def test_repeated_messages_and_maps_of_them() -> None:
    point = DescriptorProto(name="Point", field=[field("x", 1, F.TYPE_UINT64)])
    entry = DescriptorProto(name="ByIdEntry", field=[field("key", 1, F.TYPE_INT64),
                            field("value", 2, F.TYPE_MESSAGE, ".p.Point")])  # fmt: skip
    entry.options.map_entry = True
    whole = DescriptorProto(
        name="M",
        nested_type=[entry],
        field=[
            field("points", 1, F.TYPE_MESSAGE, ".p.Point", label=F.LABEL_REPEATED),
            field("by_id", 2, F.TYPE_MESSAGE, ".p.M.ByIdEntry", label=F.LABEL_REPEATED),
        ],
    )
    proto = file_of(whole, point)
    message = message_of(proto, "M")
    message.points.add(x=1 << 63)
    message.points.add()
    message.by_id[-5].x = 7
    row = as_row(ProtobufSchema("schema 1", base64_of(proto)), b"\0" + message.SerializeToString())
    assert row == {"points": [{"x": 1 << 63}, {"x": 0}], "by_id": [("-5", {"x": 7})]}


def test_what_the_schema_does_not_have_is_a_misfit() -> None:
    proto = file_of(
        DescriptorProto(name="M", field=[field("x", 1, F.TYPE_INT32), field("m", 2, F.TYPE_MESSAGE, ".p.M")])
    )
    schema = ProtobufSchema("schema 1", base64_of(proto))
    for data in (b"\x18\x01", b"\x12\x02\x18"):
        with pytest.raises(MisfitError, match="not a value of schema 1"):
            schema.open(b"\0" + data)
    required = file_of(
        DescriptorProto(name="M", field=[field("x", 1, F.TYPE_INT32, label=F.LABEL_REQUIRED)],
                        extension_range=[DescriptorProto.ExtensionRange(start=100, end=200)]),
        syntax="proto2",
    )  # fmt: skip
    schema = ProtobufSchema("schema 2", base64_of(required))
    with pytest.raises(MisfitError, match="required fields are missing"):
        schema.open(b"\0")
    assert as_row(schema, b"\0\x08\x07") == {"x": 7}
    with pytest.raises(MisfitError, match="fields that its schema does not have"):
        schema.open(b"\0\x08\x07\xa0\x06\x01")


def test_schemas_that_no_table_can_have() -> None:
    with pytest.raises(SchemaError, match="no serialized descriptor"):
        ProtobufSchema("s", 'syntax = "proto3"; message M {}')
    message = DescriptorProto(name="M", field=[field("m", 1, F.TYPE_MESSAGE, ".q.Other")])
    with pytest.raises(SchemaError, match="imported, and no reference has it"):
        ProtobufSchema("s", base64_of(file_of(message, imports=["other.proto"])))
    with pytest.raises(SchemaError, match="not a Protobuf descriptor"):
        ProtobufSchema("s", base64_of(file_of(message)))
    twice = DescriptorProto(name="M", field=[field("id", 1, F.TYPE_INT32), field("ID", 2, F.TYPE_INT32)])
    with pytest.raises(SchemaError, match="two fields have one column: id, ID"):
        ProtobufSchema("s", base64_of(file_of(twice))).open(b"\0")


def test_a_registry_gives_descriptors_and_their_references(registry: FakeRegistry) -> None:
    """References refer to others, and import names are not those of subjects."""
    city = FileDescriptorProto(name="x", package="q", syntax="proto3")
    city.message_type.add(name="City").field.append(field("name", 1, F.TYPE_STRING))
    address = FileDescriptorProto(name="y", package="q", syntax="proto3", dependency=["q/city.proto"])
    address.message_type.add(name="Address").field.append(field("city", 1, F.TYPE_MESSAGE, ".q.City"))
    order = file_of(
        DescriptorProto(name="Order", field=[field("to", 1, F.TYPE_MESSAGE, ".q.Address")]), imports=["q/address.proto"]
    )
    registry.register_protobuf(city, "city")
    registry.register_protobuf(address, "address", [{"name": "q/city.proto", "subject": "city", "version": 1}])
    schema_id = registry.register_protobuf(
        order, references=[{"name": "q/address.proto", "subject": "address", "version": 1}]
    )
    form = RegistryFormat(registry.url)
    shape, opened = form.open(wire(schema_id, b"\0\x0a\x06\x0a\x04\x0a\x02Uz"))
    assert pa.array([opened], shape.columns)[0].as_py() == {"to": {"city": {"name": "Uz"}}}
    asked = registry.asked
    assert form.open(wire(schema_id, b"\0"))[1] == {}
    assert registry.asked == asked, "schemas are kept"
    form.close()
