"""Builds the answer to one element of a request that is refused: the same names and indexes, with an error code.

Place: under agent/access/authorization; for responses of kio's generated schemas.
Invariant: an answer names what the request named and nothing else: every other field says "unknown".
Source: Kafka's message schemas; getErrorResponse of Kafka's requests.
"""

from __future__ import annotations

import functools
from dataclasses import MISSING, fields
from typing import Any, get_args, get_origin, get_type_hints

from kio.schema.errors import ErrorCode

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
