"""Requests of every API with one text or byte field grown, all else as small as it may be.

Place: used by the attack `grown_fields`, and by the tests that compare an agent's memory with its metrics.
Invariant: each request has another value in its grown field. A request is one that the agent decodes: what it keeps of
it is what a client can make it keep.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin

from kio.schema.errors import ErrorCode

from headrace.protocol.api_versions import APIS
from headrace.protocol.typed import schema
from tests.hostile.typed_frames import framed_body

_GROWN = ("string", "bytes")
_ORDINARY = {
    "principal_type": "User",
    "owner_principal_type": "User",
    "entity_type": "client-id",
    "protocol_type": "consumer",
    "mechanism": "PLAIN",
    "member_id": "",
    "subscribed_topic_regex": "",
}
"""Values with which a request gets beyond the first check; every other text is NAME."""
_NUMBERS = {"session_timeout": 10_000, "rebalance_timeout": 10_000, "transaction_timeout": 10_000}
_LAST_REQUESTS = frozenset({"UnregisterBroker", "BrokerRegistration", "BrokerHeartbeat", "AllocateProducerIds"})
"""About agents: they say nothing of clients' memory, and may make the attacked agent leave."""
NAME = "grown"
_TEXT_LENGTH_MAX = 32_767
"""Most text length of a text in a version that is not flexible."""


class GrownField(NamedTuple):
    """A field of the newest version of an API, by its path in the request."""

    api_key: int
    api_name: str
    version: int
    path: tuple[str, ...]

    def frame(self, number: int, size: int) -> bytes:
        """A request with its `number`-th value, of so many bytes."""
        found = schema(self.api_key, self.version)
        if not found.flexible:
            size = min(size, _TEXT_LENGTH_MAX)
        client_id = f"grown-{number:06d}-".ljust(1_000, "c")
        value = f"{number:06d}".ljust(size, "x")
        entity = _entity(found.request_type, self.path, value)
        return framed_body(self.api_key, self.version, bytes(found.encode_request(entity)), client_id)


def grown_fields() -> list[GrownField]:
    """Return the grown fields of all APIs."""
    apis = (api for api in APIS.values() if api.name not in _LAST_REQUESTS)
    return [
        GrownField(api.key, api.name, api.max_version, path)
        for api in apis
        for path in _paths(schema(api.key, api.max_version).request_type)
    ]


def _paths(cls: Any) -> Iterator[tuple[str, ...]]:
    for each in fields(cls):
        item = _item(each)
        if is_dataclass(item):
            yield from ((each.name, *path) for path in _paths(item))
        elif each.metadata.get("kafka_type") in _GROWN:
            yield (each.name,)


def _item(each: Field[Any]) -> Any:
    """The type of the field, or of its elements."""
    kind = _some(each.type)
    return _some(get_args(kind)[0]) if get_origin(kind) is tuple else kind


def _some(kind: Any) -> Any:
    if get_origin(kind) is UnionType:
        (kind,) = (member for member in get_args(kind) if member is not NoneType)
    return kind


def _entity(cls: Any, path: tuple[str, ...], value: str) -> Any:
    return cls(**{each.name: _value(each, path, value) for each in fields(cls)})


def _value(each: Field[Any], path: tuple[str, ...], value: str) -> Any:
    is_on_path = bool(path) and path[0] == each.name
    item = _item(each)
    if is_dataclass(item):
        made = _entity(item, path[1:] if is_on_path else (), value)
    elif is_on_path:
        made = value.encode() if each.metadata["kafka_type"] == "bytes" else value
    else:
        made = _ordinary(each)
    return (made,) if get_origin(_some(each.type)) is tuple else made


def _ordinary(each: Field[Any]) -> Any:
    match each.metadata.get("kafka_type"):
        case "string":
            return _ORDINARY.get(each.name, NAME)
        case "bytes" | "records":
            return b""
        case "uuid":
            return uuid.UUID(int=7)
        case "bool":
            return False
        case "float64":
            return 1.0
        case "error_code":
            return ErrorCode.none
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=_NUMBERS.get(each.name, 0))
        case "datetime_i64":
            return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        case _:
            return -1 if each.name in ("producer_id", "producer_epoch") else 0
