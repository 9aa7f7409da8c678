"""Answers that are made without a handler: a refused request, refused elements of one, a changed throttle time.

Place: the listener refuses a request with too many array elements to be decoded; agent/access/authorization refuses
elements of a request of kio's generated schemas. throttle_time_ms is the listener's last step for a client that is
throttled; handlers write 0.
Invariant of a refused request: a request is answered only if its version has a response with an error code at its
top. Else the result is None, and the connection ends, as Kafka ends it for a request that it cannot read.
Invariant of a refused element: an answer names what the request named and nothing else: every other field says
"unknown".
Source: Kafka's message schemas; getErrorResponse of Kafka's requests.
Invariant of the throttle time: only these four bytes change, and only in a response of a schema that has them at a
known place: at a fixed distance from the beginning, or at the very end. Others stay as they are: the client is muted
all the same.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, replace
from typing import Any, get_args, get_origin, get_type_hints

from kio.schema.errors import ErrorCode

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.protocol.typed import API_VERSIONS_KEY, schema
from headrace.protocol.wire import INT32, NULL_UUID

_EMPTY_FIELDS: dict[str, Any] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "uuid": NULL_UUID,
    "error_code": ErrorCode.none,
    "timedelta_i32": datetime.timedelta(0),
    "timedelta_i64": datetime.timedelta(0),
    "datetime_i64": datetime.datetime.fromtimestamp(0, datetime.UTC),
}


def refusal(
    api_key: int, version: int, correlation_id: int, code: ErrorCode = ErrorCode.invalid_request
) -> list[bytes | memoryview] | None:
    """The response with this error code and nothing else; None if the API has no such response."""
    found = schema(api_key, version)
    if not any(field.name == "error_code" for field in fields(found.response_type)):
        return None
    return found.encode(correlation_id, replace(blank(api_key, version), error_code=code))


def blank(api_key: int, version: int) -> Any:
    """A response entity that says nothing: no error, empty arrays."""
    response_type = schema(api_key, version).response_type
    return response_type(**{field.name: empty_value(field) for field in fields(response_type) if is_required(field)})


def is_required(field: Field[Any]) -> bool:
    """Return whether an entity of kio has no default for it."""
    return field.default is MISSING and field.default_factory is MISSING


def empty_value(field: Field[Any]) -> Any:
    """The value of a required field that says nothing. Numbers are 0."""
    if get_origin(field.type) is tuple or any(get_origin(kind) is tuple for kind in get_args(field.type)):
        return ()
    return _EMPTY_FIELDS.get(field.metadata.get("kafka_type", ""), 0)


_BY_SCALAR = frozenset({"partition_index", "partition_id", "partition", "group_id", "key", "name", "user"})
"""Fields that have an element which is a number or a text itself."""
_BY_SEQUENCE = {
    "partitions": ("partitions", "partition_indexes"),
    "partition_result": ("partitions",),
    "entity": ("entity",),
}
"""Arrays of an answer that mirror an array of the request, by the request's names for it."""
_BY_NAME = {"user": "name"}
"""Fields that have another name in the request."""
_UNKNOWN: dict[str, Any] = {
    "committed_offset": -1,
    "start_offset": -1,
    "low_watermark": -1,
    "node_id": -1,
    "port": -1,
    "metadata": "",
    "authorized_operations": -(2**31),
}
_MESSAGES = {
    ErrorCode.topic_authorization_failed: "Topic authorization failed.",
    ErrorCode.group_authorization_failed: "Group authorization failed.",
    ErrorCode.cluster_authorization_failed: "Cluster authorization failed.",
    ErrorCode.transactional_id_authorization_failed: "Transactional Id authorization failed.",
    ErrorCode.delegation_token_authorization_failed: "Delegation Token authorization failed.",
}
"""Kafka's."""


def message_of(code: ErrorCode) -> str | None:
    """The text that goes with the code; None if it says nothing."""
    return _MESSAGES.get(code)


def refused_element(answer_type: type, asked: Any, code: ErrorCode) -> Any:
    """An `answer_type` for one element of a request: an entity, a number or a text."""
    values: dict[str, Any] = {}
    for name, (element_type, is_nullable, is_required) in _shape(answer_type).items():
        if name == "error_code":
            values[name] = code
        elif name == "error_message":
            values[name] = _MESSAGES.get(code)
        elif name in _BY_SEQUENCE and element_type is not None:
            inner = next((found for own in _BY_SEQUENCE[name] if (found := getattr(asked, own, None))), ())
            values[name] = tuple(refused_element(element_type, each, code) for each in inner)
        elif (found := _same(name, asked)) is not None:
            values[name] = found
        elif is_required:
            values[name] = _blank(name, element_type, is_nullable=is_nullable)
    return answer_type(**values)


def _same(name: str, asked: Any) -> Any:
    """The request's value of the field; None if the answer does not mirror it."""
    if isinstance(asked, (int, str)):
        return asked if name in _BY_SCALAR else None
    if name == "configs":
        return None
    value = getattr(asked, _BY_NAME.get(name, name), None)
    return value if not isinstance(value, tuple) else None


def _blank(name: str, element_type: type | None, *, is_nullable: bool) -> Any:
    if name in _UNKNOWN:
        return _UNKNOWN[name]
    if element_type is not None:
        return ()
    return None if is_nullable else _EMPTY.get(name, "")


_EMPTY: dict[str, Any] = {"group_epoch": 0, "assignment_epoch": 0, "leader_epoch": 0, "resource_type": 0}
"""Required fields that are no text."""


@functools.cache
def _shape(answer_type: type) -> dict[str, tuple[type | None, bool, bool]]:
    """Field -> (type of the array's elements or None, whether it may be null, whether it has to be given)."""
    hints = get_type_hints(answer_type)
    found = {}
    for field in fields(answer_type):
        kinds = (hints[field.name], *get_args(hints[field.name]))
        arrays = [kind for kind in kinds if get_origin(kind) is tuple]
        is_required = field.default is MISSING and field.default_factory is MISSING
        element_type = get_args(arrays[0])[0] if arrays else None
        found[field.name] = (element_type, type(None) in kinds, is_required)
    return found


def element_type(response_type: type, name: str) -> type:
    """The type of the elements of a response's array."""
    found = _shape(response_type)[name][0]
    assert found is not None, f"no array: {name}"
    return found


_FIXED = {"error_code": 2, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "bool": 1}
_FIELD = "throttle_time"
_FIRST_PRODUCE = 3


def with_throttle_time(
    api_key: int, version: int, buffers: Sequence[bytes | memoryview], throttle_ms: int
) -> list[bytes | memoryview]:
    """The response with this throttle time; unchanged where it has no place."""
    found = list(buffers)
    place = _place(api_key, version)
    if place is None or not found:
        return found
    if place < 0:
        index, offset = len(found) - 1, len(found[-1]) + place
    else:
        index, offset = 0, place
        while index < len(found) and offset >= len(found[index]):
            offset -= len(found[index])
            index += 1
    if index >= len(found) or not 0 <= offset <= len(found[index]) - INT32.size:
        return found
    changed = bytearray(found[index])
    INT32.pack_into(changed, offset, throttle_ms)
    found[index] = bytes(changed)
    return found


@functools.cache
def _place(api_key: int, version: int) -> int | None:
    """Return where the field is in the frame after its length; negative: from the end. None: nowhere, or it varies."""
    if api_key not in APIS or not APIS[api_key].serves(version):
        return None
    if api_key == ApiKey.PRODUCE and version < _FIRST_PRODUCE:
        return None
    served = schema(api_key, version)
    own = [field for field in fields(served.response_type) if "tag" not in field.metadata]
    names = [field.name for field in own]
    if _FIELD not in names:
        return None
    position = INT32.size + (served.flexible and api_key != API_VERSIONS_KEY)
    for field in own:
        if field.name == _FIELD:
            return position
        size = _FIXED.get(str(field.metadata.get("kafka_type")))
        if size is None:
            break
        position += size
    is_last = names[-1] == _FIELD and api_key != API_VERSIONS_KEY  # ApiVersions has tagged fields after it
    return -(INT32.size + served.flexible) if is_last else None
