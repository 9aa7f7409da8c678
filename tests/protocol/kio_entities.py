"""Hypothesis strategies for kio's generated classes, and kio's own way to and from bytes."""

from __future__ import annotations

import datetime
import functools
import io
from dataclasses import Field, fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.response_header.v0.header import ResponseHeader as HeaderV0
from kio.schema.response_header.v1.header import ResponseHeader as HeaderV1
from kio.serial import entity_reader, entity_writer

Strategy = st.SearchStrategy[Any]
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=8)


def kio_write(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def kio_read_header(data: bytes, flexible: bool) -> tuple[Any, int]:
    """(the response header, where the body starts)."""
    return entity_reader(HeaderV1 if flexible else HeaderV0)(data, 0)


def kio_read(entity_type: Any, data: bytes) -> Any:
    """The entity that takes up all of `data`."""
    entity, end = entity_reader(entity_type)(data, 0)
    assert end == len(data)
    return entity


def _integers(bits: int) -> Strategy:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def _times(milliseconds: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=milliseconds)


_VALUES: dict[str, Strategy] = {
    "bool": st.booleans(),
    "int8": _integers(8),
    "int16": _integers(16),
    "uint16": st.integers(0, 65535),
    "int32": _integers(32),
    "int64": _integers(64),
    "float64": st.floats(allow_nan=False),
    "string": st.text(max_size=8),
    "bytes": st.binary(max_size=8),
    "records": st.binary(max_size=300),
    "uuid": st.none() | st.uuids(),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": _integers(32).map(lambda ms: datetime.timedelta(milliseconds=ms)),
    "timedelta_i64": st.integers(-(10**12), 10**12).map(lambda ms: datetime.timedelta(milliseconds=ms)),
    "datetime_i64": st.integers(0, 4 * 10**12).map(_times),
}


@functools.cache
def entities(entity_type: Any) -> Strategy:
    """Instances with every field drawn."""
    return st.builds(entity_type, **{f.name: _field(f) for f in fields(entity_type)})


def _field(entity_field: Field[Any]) -> Strategy:
    kafka_type = entity_field.metadata.get("kafka_type")
    field_type: Any = entity_field.type
    optional = get_origin(field_type) is UnionType
    if optional:
        (field_type,) = (member for member in get_args(field_type) if member is not NoneType)
    values = _value(field_type, kafka_type)
    if "tag" in entity_field.metadata and optional and entity_field.default is not None:
        return values
    return st.none() | values if optional else values


def _value(field_type: Any, kafka_type: str | None) -> Strategy:
    if get_origin(field_type) is tuple:
        item_type = get_args(field_type)[0]
        if get_origin(item_type) is UnionType:
            item_type = get_args(item_type)[0]
        return st.lists(_value(item_type, kafka_type), max_size=3).map(tuple)
    return entities(field_type) if kafka_type is None else _VALUES[kafka_type]
