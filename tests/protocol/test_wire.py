"""The primitives at their edges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol import wire
from headrace.storage.errors import InvalidError
from tests.seeds import examples


@settings(max_examples=examples(300))
@given(st.integers(0, 2**32 - 1))
def test_varints_survive(value: int) -> None:
    data = wire.uvarint(value)
    assert wire.read_uvarint(memoryview(data + b"\xff"), 0) == (value, len(data))


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x10", b"\xff\xff\xff\xff\xff\x01"])
def test_a_varint_over_32_bits_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidError, match="32 bits"):
        wire.read_uvarint(memoryview(data), 0)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff\xff\xff"])
def test_a_varint_that_ends_too_early_is_malformed(data: bytes) -> None:
    with pytest.raises(wire.MALFORMED):
        wire.read_uvarint(memoryview(data), 0)


@pytest.mark.parametrize("flexible", [False, True])
@settings(max_examples=examples(50))
@given(value=st.none() | st.text(max_size=200))
def test_strings_survive(flexible: bool, value: str | None) -> None:
    data = wire.string(value, flexible)
    assert wire.read_string_or_null(memoryview(data), 0, flexible) == (value, len(data))


@settings(max_examples=examples(50))
@given(st.dictionaries(st.integers(0, 300), st.binary(max_size=200), max_size=4))
def test_tags_survive(fields: dict[int, bytes]) -> None:
    data = wire.tags(dict(sorted(fields.items())))
    seen, end = wire.read_tags(memoryview(data), 0)
    assert ({tag: bytes(value) for tag, value in seen.items()}, end) == (fields, len(data))


@pytest.mark.parametrize("data", [b"\x01\x07\x05abcd", b"\x01\x07\xff\xff\xff\xff\x0f"])
def test_a_tag_that_passes_the_end_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidError, match="impossible length"):
        wire.read_tags(memoryview(data), 0)


def test_null_is_refused_where_a_value_is_required() -> None:
    with pytest.raises(InvalidError, match="null"):
        wire.read_string(memoryview(b"\xff\xff"), 0, False)
    with pytest.raises(InvalidError, match="null"):
        wire.read_count(memoryview(b"\0"), 0, True)
