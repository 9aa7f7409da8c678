"""Keys are where the clients put them, and a doubling moves them to one child only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metastore.partitions.placement import PARTITIONERS, fnv1a, moves

EACH = pytest.mark.parametrize("partitioner", PARTITIONERS)


def test_published_values() -> None:
    assert PARTITIONERS["crc32"](b"123456789") == 0xCBF43926
    assert fnv1a(b"") == 0x1_0000_0000 - 0x811C9DC5
    assert fnv1a(b"a") == 0x1_0000_0000 - 0xE40C292C
    assert fnv1a(b"foobar") == 0x1_0000_0000 - 0xBF9CF968


@EACH
@given(key=st.binary(min_size=1, max_size=40), count=st.integers(1, 200))
def test_a_doubling_moves_a_key_from_its_partition_to_one_child(partitioner: str, key: bytes, count: int) -> None:
    hashed = PARTITIONERS[partitioner](key)
    before, after = hashed % count, hashed % (2 * count)
    assert after in (before, before + count)
    assert moves(partitioner, key, before, count) == (after != before)
    others = (parent for parent in range(count) if parent != before)
    assert not any(moves(partitioner, key, parent, count) for parent in others)


@EACH
def test_records_without_a_key_do_not_move(partitioner: str) -> None:
    assert not any(moves(partitioner, None, parent, 4) for parent in range(4))


def test_an_empty_key_moves_where_the_client_hashes_it() -> None:
    assert any(moves("murmur2", b"", parent, count) for count in (1, 2, 4) for parent in range(count))
    assert not any(moves("crc32", b"", parent, 4) for parent in range(4))
