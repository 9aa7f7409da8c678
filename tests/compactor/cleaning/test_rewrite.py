"""What is made of a batch: tiles, horizons, sizes; and that merges keep a horizon."""

from __future__ import annotations

import pytest

from headrace.compactor.cleaning.key_map import KeyMap
from headrace.compactor.cleaning.rewrite import CleaningPass, CleanRecords, judge, note_keys
from headrace.compactor.rewrite import MergeRecords
from headrace.storage.errors import CorruptError
from headrace.storage.records.codec import Record, decode_records, empty_batch, encode_batch, encode_control_batch
from headrace.storage.records.header import BatchHeader, read_header
from headrace.storage.segment.verified import SoundBatch
from tests.storage.batches import forge

NOW_MS, HORIZON_MS = 1_700_000_000_000, 1_700_086_400_000


def stored(data: bytes) -> SoundBatch:
    return SoundBatch(memoryview(bytearray(data)), read_header(data).base_offset, -1)


def batch(offset: int, *records: tuple[str, str | None], horizon_ms: int | None = None, step_ms: int = 1) -> SoundBatch:
    made = [
        Record(offset + number, NOW_MS + number * step_ms, key.encode(), None if value is None else value.encode())
        for number, (key, value) in enumerate(records)
    ]
    return stored(encode_batch(made, base_offset=offset, delete_horizon_ms=horizon_ms))


def cleaned(
    *batches: SoundBatch, cleaned_offset: int = 0, kept: int = -1, now_ms: int = NOW_MS, **limits: int
) -> list[bytes]:
    keys = KeyMap(1 << 20, b"")
    note_keys(keys, batches)
    rule = CleaningPass(keys, cleaned_offset, kept, now_ms, HORIZON_MS)
    rewriter = CleanRecords(None, limits.get("batch_bytes", 1 << 20), limits.get("max_bytes", 1 << 20))
    rewriter.judged = {judged.batch.offset: judged for judged in judge(batches, rule)}
    written = [data for one in batches for _, data in rewriter.add(one)]
    return [bytes(data) for data in (*written, *(data for _, data in rewriter.flush()))]


def spans(batches: list[bytes]) -> list[tuple[int, int, list[int]]]:
    """(first offset, last offset, offsets of records) of each batch."""
    headers = [read_header(data) for data in batches]
    return [
        (h.base_offset, h.base_offset + h.last_offset_delta, [r.offset for r in decode_records(memoryview(data))])
        for h, data in zip(headers, batches, strict=True)
    ]


@pytest.mark.requirement("L3")
def test_batches_cover_the_offsets_of_their_inputs() -> None:
    a, b = ("a", "1"), ("b", "1")
    assert spans(cleaned(batch(0, a, b), batch(2, a), batch(3, a))) == [(0, 3, [1, 3])]
    assert spans(cleaned(batch(5, a, a, b, b))) == [(5, 8, [6, 8])]
    assert spans(cleaned(batch(0, a), batch(1, a), batch(2, a), batch_bytes=1)) == [(0, 2, [2])]


@pytest.mark.requirement("L3")
def test_one_empty_batch_covers_what_lost_every_record() -> None:
    keys = KeyMap(1 << 20, b"")
    inputs = [batch(0, ("a", "1")), batch(1, ("b", "1"), ("a", "2"))]
    note_keys(keys, [batch(9, ("a", "9"), ("b", "9"))])
    rewriter = CleanRecords(None, 1 << 20, 1 << 20)
    rewriter.judged = {j.batch.offset: j for j in judge(inputs, CleaningPass(keys, 0, -1, NOW_MS, HORIZON_MS))}
    written = [*(data for one in inputs for _, data in rewriter.add(one)), *(data for _, data in rewriter.flush())]
    (header,) = [read_header(data) for data in written]
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (0, 2, 0)
    assert header.highest_timestamp == -1


@pytest.mark.requirement("L3")
@pytest.mark.requirement("X14")
def test_a_marker_in_a_file_stays_only_at_the_end_of_the_log() -> None:
    """Links copy the marker that ends their source's log."""
    record = Record(1, NOW_MS, b"\0\0\0\1", b"\0\0\0\0\0\0")
    marker = stored(encode_control_batch(record, producer_id=3, producer_epoch=0, leader_epoch=-1))
    inputs = batch(0, ("a", "1")), marker
    assert cleaned(*inputs, kept=1) == [bytes(each.data) for each in inputs]
    assert spans(cleaned(*inputs, batch(2, ("a", "2")))) == [(0, 2, [2])]


@pytest.mark.requirement("L6")
def test_a_horizon_is_no_record_s_time() -> None:
    (data,) = cleaned(batch(0, ("a", "1"), ("b", None), step_ms=-5))
    header = read_header(data)
    assert header.delete_horizon_ms == HORIZON_MS
    assert header.highest_timestamp == NOW_MS
    assert [record.timestamp for record in decode_records(memoryview(data))] == [NOW_MS, NOW_MS - 5]


@pytest.mark.requirement("L6")
@pytest.mark.parametrize(
    ("cleaned_offset", "now_ms", "stays"),
    [(1, NOW_MS, False), (1, NOW_MS - 1, True), (0, NOW_MS, True)],
    ids=["expired", "not yet", "not below the cleaned offset"],
)
def test_a_marker_goes_only_when_both_allow_it(cleaned_offset: int, now_ms: int, stays: bool) -> None:
    marker = batch(0, ("a", None), horizon_ms=NOW_MS)
    (data,) = cleaned(marker, cleaned_offset=cleaned_offset, now_ms=now_ms)
    assert bool(decode_records(memoryview(data))) is stays
    if stays:
        expected = NOW_MS if cleaned_offset else HORIZON_MS
        assert read_header(data).delete_horizon_ms == expected, "above it, the horizon is that of this pass"


@pytest.mark.requirement("L6")
def test_markers_of_different_horizons_share_no_batch() -> None:
    inputs = [batch(0, ("a", None), horizon_ms=NOW_MS + 1), batch(1, ("b", None), horizon_ms=NOW_MS + 2)]
    assert [read_header(data).delete_horizon_ms for data in cleaned(*inputs, cleaned_offset=2)] == [
        NOW_MS + 1,
        NOW_MS + 2,
    ]
    merge = MergeRecords(None, 1 << 20, 1 << 20)
    again = [batch(2, ("c", None), horizon_ms=NOW_MS + 2), stored(empty_batch(3, 6, -1)), batch(7, ("d", "1"))]
    merge.growth_left = 1 << 20
    merged = [bytes(data) for one in (*inputs, *again) for _, data in merge.add(one)]
    merged += [bytes(data) for _, data in merge.flush()]
    assert [(offset, end) for offset, end, _ in spans(merged)] == [(0, 0), (1, 6), (7, 7)]
    assert [read_header(data).delete_horizon_ms for data in merged] == [NOW_MS + 1, NOW_MS + 2, None]


def _without_horizons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchHeader, "delete_horizon_ms", property(lambda _: None))


def test_a_merge_that_forgets_horizons_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_horizons(monkeypatch)
    with pytest.raises(AssertionError):
        test_markers_of_different_horizons_share_no_batch()


def test_no_batch_exceeds_what_the_topic_accepts() -> None:
    inputs = [batch(number, (f"k{number}", "v" * 100)) for number in range(8)]
    written = cleaned(*inputs, batch(8, ("k0", "v")), max_bytes=400, batch_bytes=10_000)
    assert all(len(data) <= 400 for data in written)
    assert [offset for _, _, offsets in spans(written) for offset in offsets] == list(range(1, 9))


def test_times_too_far_apart_for_one_batch() -> None:
    far = [Record(0, -(2**62) - 2**61, b"a", None), Record(1, 2**62, b"b", None), Record(2, NOW_MS, b"c", None)]
    singles = [stored(encode_batch([r], base_offset=r.offset)) for r in far]
    written = cleaned(*singles)
    assert [offset for _, _, offsets in spans(written) for offset in offsets] == [0, 1, 2]
    assert [r.timestamp for data in written for r in decode_records(memoryview(data))] == [r.timestamp for r in far]


def test_what_cannot_be_read_is_not_cleaned() -> None:
    contradictory = forge(encode_batch([Record(0, 0, b"a", b"1")], base_offset=0), record_count=2)
    with pytest.raises(CorruptError):
        cleaned(stored(contradictory))
