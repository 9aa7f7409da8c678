"""Requests by way of kio's schemas: the same values as kio's own reader, without its crashes."""

from __future__ import annotations

import datetime
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.protocol.typed import schema
from headrace.protocol.wire import uvarint
from headrace.storage.errors import InvalidError
from tests.protocol.client_vectors import vectors
from tests.protocol.kio_entities import entities, kio_read, kio_write
from tests.seeds import examples

PAIRS = [
    (api.key, version)
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
    if api.key != ApiKey.PRODUCE or version >= 3
]
# Not served yet, but on the way: nested structs, nullable structs and every type that requests have.
LATER = [(24, 5), (25, 4), (32, 4), (36, 2), (44, 1), (45, 1), (49, 1), (62, 4), (63, 2), (68, 1), (74, 1), (75, 0)]


@pytest.mark.parametrize(("api_key", "version"), PAIRS + LATER)
@settings(max_examples=examples(3))
@given(st.data())
def test_requests_are_read_as_kio_reads_them(api_key: int, version: int, data: st.DataObject) -> None:
    found = schema(api_key, version)
    written = kio_write(data.draw(entities(found.request_type)))
    assert found.decode(memoryview(written)) == kio_read(found.request_type, written)


def test_the_table_agrees_with_kio_on_what_is_flexible() -> None:
    for api_key, version in PAIRS:
        assert schema(api_key, version).flexible == (version >= APIS[api_key].first_flexible), (api_key, version)


def test_a_writable_frame_can_be_read() -> None:
    vector = next(v for v in vectors() if v.api_key == 3)
    frame = memoryview(bytearray(vector.body))
    assert schema(3, vector.version).decode(frame) == schema(3, vector.version).decode(vector.body)


def test_unknown_tags_inside_a_struct_are_skipped() -> None:
    unknown = b"\x02" + b"\x07\x01x" + b"\xc8\x01\x00"
    topic = bytes(16) + b"\x02t"
    settings_and_tags = b"\x01\x00"
    plain = b"\x03" + (topic + b"\0") * 2 + settings_and_tags + b"\0"
    newer = b"\x03" + (topic + unknown) * 2 + settings_and_tags + unknown
    assert schema(3, 12).decode(newer) == schema(3, 12).decode(plain)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_longest_period_of_java_is_read(sign: int) -> None:
    renewal = schema(ApiKey.RENEW_DELEGATION_TOKEN, 2).decode(b"\x01" + struct.pack(">q", sign * (2**63 - 1)) + b"\0")
    assert renewal.renew_period // datetime.timedelta(days=365_000_000) in (2, -3)


@pytest.mark.parametrize("count", [2**32 - 2, 2**31 - 2, 2**24, 300])
def test_a_lying_count_costs_nothing(count: int) -> None:
    """kio's reader allocates by the count: 2**32-2 topics abort the process, without an exception."""
    body = uvarint(count + 1) + b"\x02t\0" * 5
    found = schema(3, 9)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidError, match="malformed request: api_key=3 version=9"):
            found.decode(body)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        pytest.param(3, 4, b"\x7f\xff\xff\xff", id="legacy count"),
        pytest.param(3, 9, b"\x02\x7ft", id="string longer than the request"),
        pytest.param(18, 3, b"\0\0\0", id="null where a string is required"),
        pytest.param(8, 8, b"\x02g\0\0\0\0\x02m\0\0\0", id="null where an array is required"),
        pytest.param(14, 5, b"\x02g\0\0\0\0\x02m\0\0\0\x02\x02m\0\0\0", id="null where bytes are required"),
        pytest.param(60, 2, b"\x00\x00", id="a field is missing"),
        pytest.param(3, 9, b"\x02\x02\xff\0\x01\0\0\0", id="not utf-8"),
    ],
)
def test_a_false_length_is_refused(api_key: int, version: int, body: bytes) -> None:
    with pytest.raises(InvalidError, match="malformed request"):
        schema(api_key, version).decode(body)


TYPED = [v for v in vectors() if v.api_key in APIS and v.api_key not in (ApiKey.PRODUCE, ApiKey.FETCH) and len(v.body)]


@settings(max_examples=examples(300))
@given(st.sampled_from(TYPED), st.data())
def test_flipped_bits_are_refused_or_read(vector: Any, data: st.DataObject) -> None:
    body = bytearray(vector.body)
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    found = schema(vector.api_key, vector.version)
    try:
        entity = found.decode(memoryview(body))
    except InvalidError:
        return
    assert isinstance(entity, found.request_type)
