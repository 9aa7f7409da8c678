"""What a header may not claim, and that every client we know of passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.errors import CorruptError, HeadraceError
from headrace.storage.records.check import check_batch, split_batches
from headrace.storage.records.compression import Codec
from headrace.storage.records.errors import (
    BatchTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    UnsupportedCodecError,
    UnsupportedMagicError,
)
from headrace.storage.records.header import HEADER_BYTES, TRANSACTIONAL_BIT, read_header
from tests.seeds import examples
from tests.storage.batches import forge, plain_batch

CLIENT_BATCHES = Path(__file__).parents[2] / "golden" / "client_batches.tsv"
LIMIT = 1_048_588


def check(data: bytes) -> object:
    return check_batch(memoryview(data), max_bytes=LIMIT)


def _client_batches() -> list[tuple[str, str]]:
    lines = CLIENT_BATCHES.read_text(encoding="ascii").splitlines()
    return [(label, batch) for label, batch in (line.split("\t") for line in lines)]


@pytest.mark.parametrize(("label", "batch"), _client_batches(), ids=lambda value: value[:24])
def test_batches_of_real_clients_pass(label: str, batch: str) -> None:
    data = bytes.fromhex(batch)
    header = check_batch(memoryview(data), max_bytes=len(data))
    assert header == read_header(data)
    assert header.is_transactional == label.endswith(".txn")
    assert (header.producer_id == 1000) == label.endswith((".idem", ".txn", "python.batch"))


def test_a_sound_batch_gives_its_header() -> None:
    header = check_batch(memoryview(plain_batch(3)), max_bytes=LIMIT)
    assert (header.record_count, header.last_offset_delta, header.codec) == (3, 2, Codec.NONE)
    assert (header.is_transactional, header.is_control, header.is_log_append_time) == (False, False, False)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"magic": 0}, UnsupportedMagicError),
        ({"magic": 1}, UnsupportedMagicError),
        ({"magic": 3}, UnsupportedMagicError),
        ({"crc": 1}, CorruptError),
        ({"batch_length": 48}, CorruptError),
        ({"batch_length": -1}, CorruptError),
        ({"batch_length": 2**31 - 1}, CorruptError),
        ({"base_offset": 5}, InvalidRecordError),
        ({"base_offset": -3}, InvalidRecordError),
        ({"attributes": 5}, UnsupportedCodecError),
        ({"attributes": 7}, UnsupportedCodecError),
        ({"attributes": 0x20}, InvalidRecordError),
        ({"attributes": 0x08}, InvalidTimestampError),
        ({"record_count": 0, "last_offset_delta": -1}, InvalidRecordError),
        ({"record_count": -1, "last_offset_delta": -2}, InvalidRecordError),
        ({"record_count": 2}, InvalidRecordError),
        ({"record_count": 1, "last_offset_delta": -1}, InvalidRecordError),
        ({"record_count": 2, "last_offset_delta": 1}, InvalidRecordError),
        ({"last_offset_delta": 10**9}, InvalidRecordError),
        ({"record_count": 10**9, "last_offset_delta": 10**9 - 1}, InvalidRecordError),
        ({"producer_id": -2, "producer_epoch": 0, "base_sequence": 0}, InvalidRecordError),
        ({"producer_id": 7}, InvalidRecordError),
        ({"producer_id": 7, "producer_epoch": 0}, InvalidRecordError),
        ({"producer_id": 7, "base_sequence": 0}, InvalidRecordError),
    ],
    ids=str,
)
def test_a_lying_header_is_refused(fields: dict[str, int], error: type[HeadraceError]) -> None:
    with pytest.raises(error):
        check(forge(plain_batch(), **fields))


@pytest.mark.parametrize(
    ("codec", "expansion"), [(Codec.GZIP, 1032), (Codec.SNAPPY, 22), (Codec.LZ4, 255), (Codec.ZSTD, 32_768)]
)
def test_compression_does_not_excuse_an_impossible_count(codec: Codec, expansion: int) -> None:
    batch = plain_batch()
    most = (len(batch) - HEADER_BYTES) * expansion // 7
    check(forge(batch, attributes=codec, record_count=most, last_offset_delta=most - 1))
    with pytest.raises(InvalidRecordError, match="more records than fit"):
        check(forge(batch, attributes=codec, record_count=most + 1, last_offset_delta=most))


def test_transactional_batches_pass_and_say_so() -> None:
    batch = plain_batch(attributes=TRANSACTIONAL_BIT | Codec.ZSTD, producer_id=1, producer_epoch=0, base_sequence=0)
    header = check_batch(memoryview(batch), max_bytes=LIMIT)
    assert header.is_transactional
    assert header.codec == Codec.ZSTD


def test_the_size_limit_counts_the_whole_batch() -> None:
    batch = memoryview(plain_batch())
    assert check_batch(batch, max_bytes=len(batch)).size == len(batch)
    with pytest.raises(BatchTooLargeError):
        check_batch(batch, max_bytes=len(batch) - 1)


@pytest.mark.parametrize("size", [0, 1, 16, 17, 60])
def test_less_than_a_header_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptError):
        check(plain_batch()[:size])


def test_an_old_message_set_is_distinguished_from_garbage() -> None:
    """A format 0 message is 26 bytes at the least, shorter than a batch header."""
    message_set = bytes(8) + (14).to_bytes(4, "big") + bytes(14)
    for judge in (check, lambda data: split_batches(memoryview(data))):
        with pytest.raises(UnsupportedMagicError):
            judge(message_set)


def test_split_gives_every_batch_as_a_view() -> None:
    parts = [plain_batch(1), plain_batch(20), plain_batch(3)]
    records = memoryview(b"".join(parts))
    found = split_batches(records)
    assert found == parts
    assert all(view.obj is records.obj for view in found)
    assert split_batches(memoryview(b"")) == []


@pytest.mark.parametrize("claimed", [-1, 0, 48, 10**6, 2**31 - 1])
def test_split_refuses_broken_framing(claimed: int) -> None:
    records = plain_batch() + forge(plain_batch(), batch_length=claimed)
    with pytest.raises(CorruptError):
        split_batches(memoryview(records))


@pytest.mark.parametrize("cut", [1, 30, 68])
def test_split_refuses_a_cut_off_batch(cut: int) -> None:
    with pytest.raises(CorruptError):
        split_batches(memoryview(plain_batch() + plain_batch()[:-cut]))


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_a_flipped_bit_under_the_checksum_never_passes(data: st.DataObject) -> None:
    batch = bytearray(plain_batch(5))
    bit = data.draw(st.integers(8 * 16, len(batch) * 8 - 1))
    batch[bit // 8] ^= 1 << bit % 8
    with pytest.raises((CorruptError, UnsupportedMagicError)):
        check(bytes(batch))


@settings(max_examples=examples(200), deadline=None)
@given(junk=st.binary(max_size=200), prefix=st.integers(0, 70))
def test_garbage_is_refused_under_a_known_error(junk: bytes, prefix: int) -> None:
    records = memoryview(plain_batch()[:prefix] + junk)
    try:
        headers = [check_batch(batch, max_bytes=LIMIT) for batch in split_batches(records)]
    except (CorruptError, UnsupportedMagicError):
        return
    assert set(headers) <= {read_header(plain_batch())}
