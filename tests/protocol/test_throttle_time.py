"""The throttle time in encoded responses, as kio reads them: every version of every API."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.answers import with_throttle_time
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.typed import schema
from tests.protocol.kio_entities import entities, kio_read
from tests.protocol.test_typed import PAIRS
from tests.seeds import examples

THROTTLE_MS = 54_321


def _without_tags(entity: Any) -> Any:
    """Produce's only tagged field, other nodes' addresses, is never sent."""
    tagged = {f.name: f.default for f in fields(entity) if "tag" in f.metadata and f.default is not MISSING}
    return replace(entity, **tagged)


@pytest.mark.parametrize(("api_key", "version"), PAIRS)
@settings(max_examples=examples(2))
@given(st.data())
def test_the_throttle_time_is_where_clients_read_it(api_key: int, version: int, data: st.DataObject) -> None:
    served = schema(api_key, version)
    sent = _without_tags(data.draw(entities(served.response_type)))
    header_bytes = 5 if served.flexible and api_key != ApiKey.API_VERSIONS else 4
    buffers = with_throttle_time(api_key, version, served.encode(7, sent), THROTTLE_MS)
    read = kio_read(served.response_type, b"".join(buffers)[header_bytes:])
    if hasattr(read, "throttle_time") and api_key != ApiKey.API_VERSIONS:
        assert read.throttle_time.total_seconds() * 1000 == THROTTLE_MS
        read = replace(read, throttle_time=sent.throttle_time)
    assert read == sent


def test_what_has_no_place_for_it_stays_as_it_is() -> None:
    assert with_throttle_time(31_000, 0, [b"private"], 1) == [b"private"]
    assert with_throttle_time(ApiKey.FETCH, 99, [b"unknown"], 1) == [b"unknown"]
    assert with_throttle_time(ApiKey.METADATA, 12, [], 1) == []
    assert with_throttle_time(ApiKey.METADATA, 12, [b"abc"], 1) == [b"abc"]
