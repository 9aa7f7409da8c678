"""Reads kio's request entities from untrusted bytes, instead of kio's reader.

Place: under protocol/typed.py, for every API except Produce and Fetch.
Why not kio's reader: it is compiled and allocates memory for an array's count before it checks the remaining bytes,
so six bytes of a request can abort the whole process; and it fails on an unknown tagged field, which a newer client
may send (KIP-482). Entities, types, defaults and values are kio's.
Invariant: see protocol/wire.py; an unknown tagged field is skipped.
"""

from __future__ import annotations

import datetime
import functools
import struct
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from headrace.protocol import wire
from headrace.storage.errors import InvalidError

EntityReader = Callable[[memoryview, int], tuple[Any, int]]

_FORMATS = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "int64": ">q",
    "float64": ">d",
}
_MILLISECONDS = {"timedelta_i32": "int32", "timedelta_i64": "int64"}
_MILLISECONDS_MAX = 1000 * 86_400 * 999_999_998
"""Beyond it a timedelta overflows: 2.7 million years."""


@functools.cache
def entity_reader(entity_type: Any) -> EntityReader:
    """A reader of `entity_type`, one of kio's generated classes; for malformed bytes it raises wire.MALFORMED."""
    flexible = bool(entity_type.__flexible__)
    plain: list[tuple[str, EntityReader]] = []
    tagged: dict[int, tuple[str, EntityReader]] = {}
    for entity_field in fields(entity_type):
        reader = _field_reader(entity_field, flexible)
        if "tag" in entity_field.metadata:
            tagged[entity_field.metadata["tag"]] = (entity_field.name, reader)
        else:
            plain.append((entity_field.name, reader))

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        for name, reader in plain:
            values[name], position = reader(data, position)
        if flexible:
            tags, position = wire.read_tags(data, position)
            for tag, window in tags.items():
                if tag in tagged:
                    name, reader = tagged[tag]
                    values[name] = _whole(reader, window, tag)
        return entity_type(**values), position

    return read


def _whole(reader: EntityReader, window: memoryview, tag: int) -> Any:
    value, end = reader(window, 0)
    if end != len(window):
        raise InvalidError(f"tagged field has bytes left over: tag={tag} surplus={len(window) - end}")
    return value


def _field_reader(entity_field: Field[Any], flexible: bool) -> EntityReader:
    field_type, optional = _without_none(entity_field.type)
    kafka_type = entity_field.metadata.get("kafka_type")
    if get_origin(field_type) is tuple:
        item_type, _ = _without_none(get_args(field_type)[0])
        return _array_reader(_value_reader(item_type, kafka_type, flexible, False), flexible, optional)
    is_tag = "tag" in entity_field.metadata
    return _value_reader(field_type, kafka_type, flexible, optional and not (is_tag and is_dataclass(field_type)))


def _without_none(field_type: Any) -> tuple[Any, bool]:
    if get_origin(field_type) not in (UnionType, Union):
        return field_type, False
    (inner,) = (member for member in get_args(field_type) if member is not NoneType)
    return inner, True


def _value_reader(value_type: Any, kafka_type: str | None, flexible: bool, optional: bool) -> EntityReader:
    if kafka_type is None:
        entity = entity_reader(value_type)
        return _nullable_entity_reader(entity) if optional else entity
    match kafka_type:
        case "string":
            read_string = wire.read_string_or_null if optional else wire.read_string
            return lambda data, position: read_string(data, position, flexible)
        case "bytes" | "records":
            return _bytes_reader(flexible, optional)
        case "uuid":
            return _read_uuid_or_none
        case "timedelta_i32" | "timedelta_i64":
            return _milliseconds_reader(_fixed_reader(_FORMATS[_MILLISECONDS[kafka_type]]))
        case str() if kafka_type in _FORMATS:
            return _fixed_reader(_FORMATS[kafka_type])
    raise NotImplementedError(f"no reader for a request field: kafka_type={kafka_type}")


def _fixed_reader(pattern: str) -> EntityReader:
    layout = struct.Struct(pattern)
    unpack, size = layout.unpack_from, layout.size
    return lambda data, position: (unpack(data, position)[0], position + size)


def _milliseconds_reader(read_number: EntityReader) -> EntityReader:
    """Clients send Java's Long.MAX_VALUE for "as long as possible"; a timedelta holds less."""

    def read(data: memoryview, position: int) -> tuple[datetime.timedelta, int]:
        value, position = read_number(data, position)
        return datetime.timedelta(milliseconds=min(max(value, -_MILLISECONDS_MAX), _MILLISECONDS_MAX)), position

    return read


def _read_uuid_or_none(data: memoryview, position: int) -> tuple[Any, int]:
    value, position = wire.read_uuid(data, position)
    return (None if value == wire.NULL_UUID else value), position


def _bytes_reader(flexible: bool, optional: bool) -> EntityReader:
    def read(data: memoryview, position: int) -> tuple[bytes | None, int]:
        size, position = wire.read_size(data, position, flexible)
        if size < 0:
            if not optional:
                raise InvalidError("null where bytes are required")
            return None, position
        return bytes(data[position : position + size]), position + size

    return read


def _array_reader(read_item: EntityReader, flexible: bool, optional: bool) -> EntityReader:
    read_count = wire.read_count_or_null if optional else wire.read_count

    def read(data: memoryview, position: int) -> tuple[tuple[Any, ...] | None, int]:
        count, position = read_count(data, position, flexible)
        if count < 0:
            return None, position
        items = []
        for _ in range(count):
            item, position = read_item(data, position)
            items.append(item)
        return tuple(items), position

    return read


def _nullable_entity_reader(read_entity: EntityReader) -> EntityReader:
    """A struct after a byte that is negative if the struct is null (KIP-893)."""

    def read(data: memoryview, position: int) -> tuple[Any, int]:
        if data[position] > 0x7F:
            return None, position + 1
        return read_entity(data, position + 1)

    return read
