"""Metadata records as JSON for people: Kafka's field names, UUIDs and record type names.

Place: under `headrace dump-log` and `headrace shell`.
Invariant: one record, one line; a field that a newer schema marks as tagged is left out if it has its default value,
as in Kafka's decoder.
Source: KIP-631, changes to kafka-dump-log.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

from headrace.metastore.log.records import decode_record
from headrace.metastore.log.wire import Reader


def payload_line(framed: bytes) -> str:
    """`payload: {"type":…,"version":…,"data":{…}}` of a framed record. Errors as decode_record's."""
    record = decode_record(framed)
    frame = Reader(framed)
    _frame_type, _record_type, version = frame.uvarint(), frame.uvarint(), frame.uvarint()
    body = {"type": type_name(type(record)), "version": version, "data": plain(record)}
    return f"payload: {json.dumps(body, separators=(',', ':'))}"


def type_name(cls: type[Any]) -> str:
    """Kafka's name of a record type: TopicRecord is TOPIC_RECORD."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()


def plain(value: Any) -> Any:
    """The value in JSON's types: dataclasses become objects with Kafka's camelCase names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            _camel(field.name): plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.default is dataclasses.MISSING or getattr(value, field.name) != field.default
        }
    if isinstance(value, uuid.UUID):
        return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(item) for item in value]
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
