"""Writes throttle_time_ms into a response that is already encoded.

Place: the listener's last step for a client that is throttled; handlers write 0.
Invariant: only these four bytes change, and only in a response of a schema that has them at a known place: at a fixed
distance from the beginning, or at the very end. Others stay as they are: the client is muted all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import fields

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.protocol.typed import API_VERSIONS_KEY, schema
from headrace.protocol.wire import INT32

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
