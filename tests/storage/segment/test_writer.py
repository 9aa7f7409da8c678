"""The writer keeps order, bytes and accounts."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.errors import InvalidError
from headrace.storage.records.header import LOG_APPEND_TIME_BIT, read_header
from headrace.storage.segment import format as segment_format
from headrace.storage.segment.reader import read_footer, verify_segment, walk_batches
from headrace.storage.segment.writer import SegmentWriter
from tests.seeds import examples
from tests.storage.batches import BASE_TIME_MS, plain_batch
from tests.storage.segments import Placed, lay_out, sort_for_file

A, B = uuid.UUID(int=10), uuid.UUID(int=1 << 127)
BATCHES = tuple(plain_batch(count, bytes([65 + count]) * count * 3) for count in range(1, 6))

placements = st.lists(
    st.builds(Placed, st.sampled_from([A, B, uuid.UUID(int=7)]), st.integers(0, 4), st.sampled_from(BATCHES)),
    min_size=1,
    max_size=40,
)


@pytest.mark.requirement("W6")
@settings(max_examples=examples(100), deadline=None)
@given(placed=placements)
def test_a_file_holds_its_batches_sorted_by_topic_then_partition_in_arrival_order(placed: list[Placed]) -> None:
    ordered = sort_for_file(placed)
    data, positions = lay_out(ordered)
    footer = verify_segment(data)
    keys = [(entry.topic_id.bytes, entry.partition_index) for entry in footer.partitions]
    assert keys == sorted({(item.topic_id.bytes, item.partition) for item in placed})
    for entry in footer.partitions:
        arrived = [item.batch for item in placed if (item.topic_id, item.partition) == (entry.topic_id, entry[1])]
        assert data[entry.position : entry.position + entry.length] == b"".join(arrived)
        assert entry.batch_count == len(arrived)
        assert entry.record_count == sum(read_header(batch).record_count for batch in arrived)
    for item, position in zip(ordered, positions, strict=True):
        assert data[position : position + len(item.batch)] == item.batch


@pytest.mark.requirement("W6")
@pytest.mark.parametrize(
    ("first", "second"),
    [((B, 0), (A, 0)), ((A, 1), (A, 0)), ((A, 2), (A, 1)), ((B, 0), (A, 9))],
)
def test_the_writer_refuses_partitions_out_of_order(
    first: tuple[uuid.UUID, int], second: tuple[uuid.UUID, int]
) -> None:
    with pytest.raises(InvalidError, match="not sorted"):
        lay_out([Placed(*first, BATCHES[0]), Placed(*second, BATCHES[0])])


@pytest.mark.requirement("W6")
def test_the_writer_refuses_to_come_back_to_a_partition() -> None:
    with pytest.raises(InvalidError, match="not sorted"):
        lay_out([Placed(A, 0, BATCHES[0]), Placed(A, 1, BATCHES[0]), Placed(A, 0, BATCHES[0])])


@pytest.mark.requirement("W6")
def test_a_partition_cannot_appear_under_two_keys() -> None:
    writer = SegmentWriter()
    batch = memoryview(BATCHES[0])
    writer.add(A, 0, 1, batch, read_header(batch))
    with pytest.raises(InvalidError, match="not sorted"):
        writer.add(A, 0, 2, batch, read_header(batch))


def test_equal_input_gives_equal_bytes() -> None:
    placed = [Placed(A, 0, BATCHES[0]), Placed(B, 3, BATCHES[1])]
    assert lay_out(placed) == lay_out(placed)


def test_finishing_does_not_end_the_writer() -> None:
    writer = SegmentWriter()
    batch = memoryview(BATCHES[0])
    writer.add(A, 0, 1, batch, read_header(batch))
    assert writer.finish() == writer.finish()
    assert writer.body_end == segment_format.BODY_START + len(batch)


def test_times_cover_what_headers_vouch_for() -> None:
    unset_maximum = plain_batch(1, base_timestamp=BASE_TIME_MS + 50, max_timestamp=-1)
    stamped = plain_batch(1, base_timestamp=3, max_timestamp=BASE_TIME_MS + 20, attributes=LOG_APPEND_TIME_BIT)
    data, _ = lay_out([Placed(A, 0, plain_batch(10)), Placed(A, 0, unset_maximum), Placed(A, 1, stamped)])
    mixed, appended = read_footer(data, len(data)).partitions
    assert (mixed.min_timestamp, mixed.max_timestamp) == (BASE_TIME_MS, BASE_TIME_MS + 50)
    assert (appended.min_timestamp, appended.max_timestamp) == (BASE_TIME_MS + 20, BASE_TIME_MS + 20)


@pytest.mark.parametrize("interval", [1, 100, 256, 1_000, 100_000])
def test_the_index_marks_a_batch_per_interval(interval: int) -> None:
    placed = [Placed(A, 0, BATCHES[i % 5]) for i in range(30)] + [Placed(B, 0, BATCHES[4])]
    data, positions = lay_out(placed, index_interval_bytes=interval)
    footer = verify_segment(data)
    entry, other = footer.partitions
    expected, last = [], entry.position
    for number, position in enumerate(positions[:-1]):
        if position - last >= interval:
            headers = [read_header(item.batch) for item in placed[:number]]
            records = sum(header.record_count for header in headers)
            expected.append((records, max(header.max_timestamp for header in headers), position))
            last = position
    assert list(entry.index_entries) == expected
    assert other.index_entries == ()
    assert footer.index_interval_bytes == interval


def test_a_batch_s_neighbour_is_found_by_walking_its_partition() -> None:
    data, positions = lay_out([Placed(A, 0, batch) for batch in BATCHES])
    (entry,) = read_footer(data, len(data)).partitions
    run = memoryview(data)[entry.position : entry.position + entry.length]
    assert [entry.position + position for position, _ in walk_batches(run)] == positions
    assert [header for _, header in walk_batches(run)] == [read_header(batch) for batch in BATCHES]


def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidError, match="without batches"):
        SegmentWriter().finish()
    for interval in (0, -1, 2**32):
        with pytest.raises(InvalidError, match="out of range"):
            SegmentWriter(index_interval_bytes=interval)
    with pytest.raises(InvalidError, match="another batch"):
        SegmentWriter().add(A, 0, 1, memoryview(BATCHES[0]), read_header(BATCHES[1]))
    monkeypatch.setattr(segment_format, "MAX_FOOTER_BYTES", 100)
    with pytest.raises(InvalidError, match="too many partitions"):
        lay_out([Placed(A, 0, BATCHES[0]), Placed(A, 1, BATCHES[0])])
