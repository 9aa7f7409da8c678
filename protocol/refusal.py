"""Refuses a request as a whole, without having decoded it.

Place: called by the listener for a request that has too many array elements to be decoded.
Invariant: a request is answered only if its version has a response with an error code at its top. Else the result
is None, and the connection ends, as Kafka ends it for a request that it cannot read.
"""

from __future__ import annotations

import datetime
from dataclasses import MISSING, Field, fields, replace
from typing import Any, get_args, get_origin

from kio.schema.errors import ErrorCode

from headrace.protocol.typed import schema
from headrace.protocol.wire import NULL_UUID

_EMPTY: dict[str, Any] = {
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
    return _EMPTY.get(field.metadata.get("kafka_type", ""), 0)
