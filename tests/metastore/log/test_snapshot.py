"""Snapshots: any one plus the tail gives the same image, none has a record too many, damage is named."""

from __future__ import annotations

import functools
import struct
import tracemalloc
import uuid
import zlib

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.metastore.log.snapshot import decode_snapshot, encode_snapshot, load_snapshot, snapshot_records
from headrace.storage.errors import CorruptError, HeadraceError, InvalidError
from tests.metastore.log.log_histories import random_history, topic_records
from tests.seeds import examples

SEEDS = st.integers(0, 2**32)


@pytest.mark.requirement("C3")
@settings(max_examples=examples(150))
@given(SEEDS, st.integers(0, 60), st.integers(0, 200))
def test_any_snapshot_and_the_log_after_it_give_the_same_image(seed: int, steps: int, cut: int) -> None:
    log = random_history(seed, steps)
    end = min(cut, len(log))
    started = load_snapshot(encode_snapshot(apply(MetadataImage(), log[:end])))
    assert started == apply(MetadataImage(), log[:end])
    assert apply(started, log[end:]) == apply(MetadataImage(), log)


@pytest.mark.requirement("C3")
@settings(max_examples=examples(60))
@given(SEEDS, st.integers(0, 40))
def test_no_record_of_a_snapshot_can_be_left_out(seed: int, steps: int) -> None:
    image = apply(MetadataImage(), random_history(seed, steps))
    records = list(snapshot_records(image))
    for left_out in range(len(records)):
        try:
            without = apply(MetadataImage(), records[:left_out] + records[left_out + 1 :])
        except CorruptError:
            continue  # what comes after it refers to it
        assert _content(without) != _content(image), decode_snapshot(encode_snapshot(image))[1][left_out]


def _content(image: MetadataImage) -> list[object]:
    return [getattr(image, name) for name in MetadataImage.__slots__ if name != "offset"]


def _file() -> bytes:
    records = topic_records(uuid.UUID(int=1), "orders", 300)
    return encode_snapshot(apply(MetadataImage(), [encode_record(record) for record in records]))


def test_the_file_format_is_frozen() -> None:
    topic = encode_record(topic_records(uuid.UUID(int=1), "a", 0)[0])
    data = encode_snapshot(apply(MetadataImage(), [topic]))
    magic, version, end_offset, count, _, size = struct.unpack_from(">4sHqIII", data)
    assert (magic, version, end_offset, count) == (b"HRMS", 1, 1, 1)
    body = zlib.decompress(data[26:])
    assert len(body) == size
    numbered = "000200 0261 " + uuid.UUID(int=1).hex + " 03 904e0400000000 914e0400000000 924e080000000000000000"
    assert body == bytes([len(bytes.fromhex(numbered))]) + bytes.fromhex(numbered)


@settings(max_examples=examples(100))
@given(st.data())
def test_a_damaged_or_cut_file_is_never_taken_for_a_whole_one(data: st.DataObject) -> None:
    whole = bytearray(_file())
    if data.draw(st.booleans()):
        cut = data.draw(st.integers(0, len(whole) - 1))
        damaged = bytes(whole[:cut])
    else:
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] ^= 1 << data.draw(st.integers(0, 7))
        damaged = bytes(whole)
    with pytest.raises(HeadraceError):
        decode_snapshot(damaged)


@pytest.mark.parametrize(
    ("data", "kind", "named"),
    [
        (b"", InvalidError, "not a metadata snapshot"),
        (b"HRSG" + bytes(40), InvalidError, "not a metadata snapshot"),
        (b"HRMS\x00\x02" + bytes(40), InvalidError, "version=2"),
        (b"HRMS\x00\x01" + bytes(40), CorruptError, "damaged"),
    ],
)
def test_files_of_another_kind_are_named(data: bytes, kind: type[Exception], named: str) -> None:
    with pytest.raises(kind, match=named):
        load_snapshot(data)


_packed = functools.cache(functools.partial(zlib.compress, level=9))


def _forged(body: bytes, size: int, count: int) -> bytes:
    """A file with a valid checksum."""
    packed = _packed(body)
    header = struct.pack(">4sHqIII", b"HRMS", 1, 1, count, 0, size)
    checksum = crc32c(packed, crc32c(header))
    return struct.pack(">4sHqIII", b"HRMS", 1, 1, count, checksum, size) + packed


@pytest.mark.requirement("X7")
@pytest.mark.parametrize(
    ("size", "count", "kind", "named"),
    [
        (200_000_000, 1, InvalidError, "too large to unpack"),
        (1_000, 2_000_000, InvalidError, "too large to unpack"),
        (1_000, 1, CorruptError, "another size"),
        (2**32 - 1, 2**32 - 1, InvalidError, "too large"),
    ],
)
def test_a_file_unpacks_within_its_limit(size: int, count: int, kind: type[Exception], named: str) -> None:
    """200 KB that unpack to 200 MB, and smaller and larger claims about them."""
    bomb = _forged(bytes(200_000_000), size, count)
    assert len(bomb) < 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(kind, match=named):
            load_snapshot(bomb, 64 * 1024 * 1024)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1024 * 1024, "nothing of it was unpacked beyond the claim"


def test_a_body_shorter_than_claimed_is_damage() -> None:
    with pytest.raises(CorruptError, match="another size"):
        decode_snapshot(_forged(bytes(100), 101, 1))
    assert decode_snapshot(_forged(b"", 0, 0)) == (1, [])
