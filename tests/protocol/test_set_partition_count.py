"""The request for a partition count: what is written is read, and other bytes are refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.own_requests import (
    CountRequest,
    CountResponse,
    decode_count_request,
    decode_count_response,
    encode_count_request,
    encode_count_response,
)
from headrace.storage.errors import InvalidError

INT32 = st.integers(-(2**31), 2**31 - 1)
HEADER_BYTES = 4 + 8 + 2 + len("me")
"""Length, fixed header and client id."""


@given(st.builds(CountRequest, st.text(max_size=20), INT32, INT32, st.booleans()))
def test_a_request_is_read_as_it_was_written(request: CountRequest) -> None:
    frame = encode_count_request(request, "me", 7)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode_count_request(memoryview(frame)[HEADER_BYTES:]) == request


@given(st.builds(CountResponse, st.integers(-1, 200), st.none() | st.text(max_size=20)))
def test_a_response_is_read_as_it_was_written(response: CountResponse) -> None:
    assert decode_count_response(memoryview(encode_count_response(7, response))) == response


def test_the_bytes_are_frozen() -> None:
    frame = encode_count_request(CountRequest("ab", 9, 30_000, True), "me", 7)
    assert frame.hex(" ") == ("00 00 00 19 7a 3d 00 00 00 00 00 07 00 02 6d 65 00 02 61 62 00 00 00 09 00 00 75 30 01")
    assert encode_count_response(7, CountResponse(37, None)).hex(" ") == "00 00 00 07 00 25 ff ff"


@pytest.mark.parametrize("body", [b"", b"\0\2a", b"\xff\xff" + b"\0" * 9, b"\0\1a" + b"\0" * 8, b"\0\1a" + b"\0" * 10])
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidError):
        decode_count_request(memoryview(body))


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused_by_name(body: bytes) -> None:
    with contextlib.suppress(InvalidError):
        decode_count_request(memoryview(body))
    with contextlib.suppress(InvalidError):
        decode_count_response(memoryview(body))
