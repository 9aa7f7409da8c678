"""Protobuf: a message's columns, and how a value that google.protobuf read becomes them.

| Protobuf | column |
| --- | --- |
| message, group | struct; at the top its fields are columns |
| repeated, map | list, map with strings as keys (numbers and booleans as text) |
| int32, sint32, sfixed32; uint32, fixed32, int64, sint64, sfixed64 | int; long |
| uint64, fixed64 | decimal(20, 0) |
| float, double, bool, string, bytes | float, double, boolean, string, binary |
| enum | string: the value's name, or its number if the schema has no name for it |
| a member of a oneof, optional, a message | the column of its type; null if it is not set |
| a field of proto3 without `optional` | the column of its type; a value that was not sent is the type's zero |
| Timestamp | timestamptz, without what is below a microsecond |
| BoolValue and the other wrappers | the column of the type inside; null if it is not set |
| Duration, FieldMask, Struct, Value, ListValue | string: as in Protobuf's JSON |
| a message inside itself | string with the inner value as Protobuf's JSON |
| a message without fields | no column |

Place: used by registry.py. The package protobuf parses descriptors and reads values; schemas come as serialized
descriptors, so nothing here parses .proto files.
Invariant: a value becomes a row only if all of it is in the schema: fields that the schema does not have, and
extensions, make it a misfit. References are resolved by the registry's, then by the well-known files of google and
confluent.
"""

from __future__ import annotations

import base64
import binascii
import decimal
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from headrace.tables.errors import MisfitError, SchemaError
from headrace.tables.values import columns as c
from headrace.tables.values.columns import ColumnPlan, Convert, ValueShape
from headrace.tables.values.limits import PartCount, require_small

_F = FieldDescriptor
_UNSIGNED = pa.decimal128(20, 0)
_SCALARS = {
    _F.TYPE_INT32: c.INT, _F.TYPE_SINT32: c.INT, _F.TYPE_SFIXED32: c.INT,
    _F.TYPE_UINT32: c.LONG, _F.TYPE_FIXED32: c.LONG,
    _F.TYPE_INT64: c.LONG, _F.TYPE_SINT64: c.LONG, _F.TYPE_SFIXED64: c.LONG,
    _F.TYPE_FLOAT: c.FLOAT, _F.TYPE_DOUBLE: c.DOUBLE, _F.TYPE_BOOL: c.BOOLEAN,
    _F.TYPE_STRING: c.STRING, _F.TYPE_BYTES: c.BINARY,
}  # fmt: skip
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
}
_AS_JSON = {f"google.protobuf.{name}" for name in ("Duration", "FieldMask", "Struct", "Value", "ListValue")}
_TIMESTAMP = "google.protobuf.Timestamp"
_WELL_KNOWN = re.compile(r"google/(protobuf|type)/\w+\.proto|confluent/(\w+/)?\w+\.proto", re.ASCII)
_CONFLUENT = "confluent_kafka.schema_registry."
INDEXES_MAX = 100
"""Message indexes of one value: as deep as messages may be inside each other."""


class ProtobufSchema:
    """A file with messages. SchemaError for one that is no descriptor, or that lacks a reference."""

    def __init__(self, name: str, text: str, references: Mapping[str, str] | None = None) -> None:
        """`text`: a serialized FileDescriptorProto in base64; `references`: those of other files, by import name, each
        after those that it imports itself.
        """
        self._name = name
        self.parts = 1
        """Parts of its messages that were opened, with those inside them."""
        self._pool = DescriptorPool()
        self._messages: dict[tuple[int, ...], ProtobufMessage | SchemaError] = {}
        try:
            for path, each in (references or {}).items():
                self._add(path, each)
            self._file = self._add(f"{name}.proto", text)
        except (SchemaError, MemoryError):
            raise
        except Exception as error:  # of any kind: the descriptor is a client's, and a library takes it apart
            raise SchemaError(f"{name}: not a Protobuf descriptor: {type(error).__name__}: {error}") from error

    def _add(self, path: str, text: str) -> FileDescriptor:
        proto = FileDescriptorProto()
        require_small(text)
        try:
            proto.ParseFromString(base64.b64decode(text, validate=True))
        except (DecodeError, binascii.Error) as error:
            raise SchemaError(f"{self._name}: the registry gives no serialized descriptor of {path}") from error
        proto.name = path
        for each in proto.dependency:
            self._add_well_known(each)
        self._pool.Add(proto)
        return self._pool.FindFileByName(path)

    def _add_well_known(self, path: str) -> None:
        """Add a file that comes with a library, and what it imports, unless the pool has it."""
        try:
            self._pool.FindFileByName(path)
        except KeyError:
            if _WELL_KNOWN.fullmatch(path) is None:
                raise SchemaError(f"{self._name}: the file {path} is imported, and no reference has it") from None
            module = f"{path.removesuffix('.proto').replace('/', '.')}_pb2"
            try:
                found = importlib.import_module(f"{_CONFLUENT}{module}" if path.startswith("confluent/") else module)
            except ImportError as error:
                raise SchemaError(f"{self._name}: the file {path} is imported, and no library has it") from error
            proto = FileDescriptorProto()
            found.DESCRIPTOR.CopyToProto(proto)
            for each in proto.dependency:
                self._add_well_known(each)
            self._pool.Add(proto)

    def open(self, value: bytes) -> tuple[ValueShape, Any]:
        """Open what follows a schema's id: the indexes of the message, and the message. MisfitError; SchemaError for a
        message that no table can have.
        """
        indexes, at = message_indexes(value)
        if (found := self._messages.get(indexes)) is None:
            message, count = self._message(indexes), PartCount()
            try:
                found = ProtobufMessage(self._name, message, self._pool, count)
            except SchemaError as error:
                found = error
            self.parts += count.parts
            self._messages[indexes] = found
        if isinstance(found, Exception):
            raise found
        return found.shape, found.read(value[at:])

    def _message(self, indexes: Sequence[int]) -> Descriptor:
        kinds: Sequence[Descriptor] = list(self._file.message_types_by_name.values())
        found: Descriptor | None = None
        for each in indexes:
            if not 0 <= each < len(kinds):
                raise MisfitError(f"{self._name} has no message with the indexes {list(indexes)}")
            found = kinds[each]
            kinds = found.nested_types
        assert found is not None, "there is at least one index"
        return found


class ProtobufMessage:
    """One message type. SchemaError if it asks for columns that no table has."""

    def __init__(self, name: str, descriptor: Descriptor, pool: DescriptorPool, count: PartCount) -> None:
        self._kind = GetMessageClass(descriptor)
        try:
            self._plan = c.top(_message_plan(descriptor, _Around(pool, (), count), is_top=True))
        except SchemaError as error:
            raise SchemaError(f"{name}: {error}") from error
        assert self._plan.type is not None
        self.shape = ValueShape(f"{name} ({descriptor.full_name})", self._plan.type)

    def read(self, data: bytes) -> Any:
        """Return the columns of one value. MisfitError for bytes that the message type does not describe."""
        message = self._kind()
        try:
            message.ParseFromString(data)
            if not message.IsInitialized():
                raise ValueError(f"required fields are missing: {message.FindInitializationErrors()}")
            return (None if self._plan.convert is None else self._plan.convert(message)) or {}
        except MemoryError:
            raise
        except Exception as error:  # of any kind: the bytes are a client's
            raise MisfitError(f"not a value of {self.shape.name}: {error}") from error


def message_indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes of a message in its file, from the outermost one, and where the message begins.

    Confluent's wire format: their count and each as a zigzag varint; a count of 0 means the first message.
    """
    count, at = _varint(value, 0)
    if not count:
        return (0,), at
    if not 0 < count <= INDEXES_MAX:
        raise MisfitError(f"not in the wire format of a schema registry: {count} message indexes")
    found = []
    for _ in range(count):
        index, at = _varint(value, at)
        found.append(index)
    return tuple(found), at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(value) and shift < 70:
        byte = value[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise MisfitError("not in the wire format of a schema registry: message indexes that do not end")


class _Around(NamedTuple):
    """The pool with all types, and the messages around a part of one."""

    pool: DescriptorPool
    inside: tuple[str, ...]
    counted: PartCount


def _message_plan(descriptor: Descriptor, around: _Around, *, is_top: bool = False) -> ColumnPlan:
    name = descriptor.full_name
    if name == _TIMESTAMP:
        return ColumnPlan(c.TIMESTAMPTZ, _micros)
    if name in _AS_JSON or name in around.inside:
        return ColumnPlan(c.STRING, partial(_json_text, around.pool))
    if name in _WRAPPERS:
        inner = _one(descriptor.fields_by_name["value"], around)
        return ColumnPlan(inner.type, partial(_unwrapped, inner.convert))
    within = around._replace(inside=(*around.inside, name))
    found = [(field, _field_plan(field, within)) for field in descriptor.fields]
    kept = [(field, c.column_name(field.name), plan) for field, plan in found if plan.type is not None]
    if not kept:
        return ColumnPlan(pa.struct([]) if is_top else None, partial(_known, descriptor.is_extendable))
    kind = c.struct_of((column, plan.type) for _, column, plan in kept)
    parts = [(field.name, column, plan.convert, field.has_presence) for field, column, plan in kept]
    return ColumnPlan(kind, partial(_fields, parts, descriptor.is_extendable))


def _field_plan(field: FieldDescriptor, around: _Around) -> ColumnPlan:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        plan = _one(entry["value"], around)
        return ColumnPlan(None) if plan.type is None else ColumnPlan(c.map_of(plan.type), partial(_map, plan.convert))
    plan = _one(field, around)
    if not field.is_repeated:
        return plan
    return ColumnPlan(None) if plan.type is None else ColumnPlan(c.list_of(plan.type), partial(_list, plan.convert))


def _one(field: FieldDescriptor, around: _Around) -> ColumnPlan:
    """The column of a single value of the field's type."""
    with around.counted.part():
        if field.message_type is not None:
            return _message_plan(field.message_type, around)
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return ColumnPlan(c.STRING, partial(_enum_name, names))
    if field.type in (_F.TYPE_UINT64, _F.TYPE_FIXED64):
        return ColumnPlan(_UNSIGNED, decimal.Decimal)
    return ColumnPlan(_SCALARS[field.type])


def _known(is_extendable: bool, message: Message) -> dict[str, Any]:
    """Refuse what has no column: fields that the schema does not have, and extensions."""
    if len(UnknownFieldSet(message)):
        raise ValueError(f"{message.DESCRIPTOR.full_name} has fields that its schema does not have")
    if is_extendable and any(field.is_extension for field, _ in message.ListFields()):
        raise ValueError(f"{message.DESCRIPTOR.full_name} has extensions")
    return {}


def _fields(
    parts: Sequence[tuple[str, str, Convert | None, bool]], is_extendable: bool, message: Message
) -> dict[str, Any]:
    _known(is_extendable, message)
    found = {}
    for name, column, convert, has_presence in parts:
        if not has_presence or message.HasField(name):
            value = getattr(message, name)
            found[column] = value if convert is None else convert(value)
    return found


def _map(convert: Convert | None, value: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    return [(_key(key), value[key] if convert is None else convert(value[key])) for key in value]


def _key(key: Any) -> str:
    return ("true" if key else "false") if isinstance(key, bool) else str(key)


def _list(convert: Convert | None, value: Sequence[Any]) -> list[Any]:
    return list(value) if convert is None else [convert(each) for each in value]


def _unwrapped(convert: Convert | None, message: Any) -> Any:
    _known(False, message)
    return message.value if convert is None else convert(message.value)


def _enum_name(names: Mapping[int, str], number: int) -> str:
    return names.get(number, str(number))


def _micros(message: Any) -> int:
    """Return microseconds since 1970."""
    _known(False, message)
    micros: int = message.seconds * 1_000_000 + message.nanos // 1_000
    return micros


def _json_text(pool: DescriptorPool, message: Message) -> str:
    as_text: Callable[..., str] = json_format.MessageToJson
    return as_text(message, preserving_proto_field_name=True, indent=None, descriptor_pool=pool)
