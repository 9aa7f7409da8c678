"""X14: how `headrace link verify` judges a partition, and which ranges a sample has."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.cli.client.committed import CommittedBounds
from headrace.cli.link_verify import BothBounds, ComparedTopic, VerifiedPartition, judge, ranges_of
from headrace.storage.records.codec import Record, RecordColumns, encode_batch, open_batch
from headrace.storage.records.comparison import Comparison

pytestmark = pytest.mark.requirement("X14")
LINKED = ComparedTopic("orders", (1, 1), is_linked=True, is_compacted=False)
PROMOTED = LINKED._replace(is_linked=False)


def _columns(offsets: Sequence[int]) -> list[RecordColumns]:
    data = [encode_batch([Record(offset, 1, b"k", b"v")], base_offset=offset) for offset in offsets]
    return [open_batch(memoryview(each)).columns() for each in data]


def _judged(
    topic: ComparedTopic,
    source: tuple[int, int],
    here: tuple[int, int],
    lacking: tuple[Sequence[int], Sequence[int]] = ((), ()),
    until: int | None = None,
) -> VerifiedPartition:
    """`source` and `here`: their bounds; `lacking`: offsets without a record at the source, and here."""
    start, end = max(source[0], here[0]), min(source[1], here[1], until or source[1])
    found = Comparison()
    found.compare(*(_columns([each for each in range(start, end) if each not in less]) for less in lacking))
    row = VerifiedPartition("orders", 0)
    judge(
        row,
        BothBounds(CommittedBounds(*source), CommittedBounds(*here), CommittedBounds(start, end)),
        topic,
        found,
        until,
    )
    return row


@pytest.mark.parametrize("topic", [LINKED, PROMOTED])
def test_both_sides_are_the_same(topic: ComparedTopic) -> None:
    row = _judged(topic, (2, 9), (2, 9))
    assert (row.result, row.notes, row.source_records, row.here_records) == ("equal", [], 7, 7)
    assert row.source_checksum == row.here_checksum != ""


@pytest.mark.parametrize(
    ("topic", "source", "here", "result", "note"),
    [
        (LINKED, (0, 9), (0, 7), "behind", "the copy ends at 7, the source at 9"),
        (PROMOTED, (0, 9), (0, 7), "behind", "the copy ends at 7, the source at 9: sent there after the promotion"),
        (LINKED, (0, 9), (0, 11), "equal", "not compared, because the copy went on meanwhile: 2 offsets"),
        (PROMOTED, (0, 9), (0, 11), "equal", "not compared, because sent here after the promotion: 2 offsets"),
        (LINKED, (0, 9), (4, 9), "different", "the copy begins at 4, the source at 0"),
        (PROMOTED, (0, 9), (4, 9), "equal", "the copy begins at 4, the source at 0: removed since it was copied"),
        (LINKED, (4, 9), (0, 9), "equal", "the copy begins at 0, the source at 4: removed since it was copied"),
        (LINKED, (20, 30), (0, 9), "behind", "the copy ends at 9, the source at 30"),
    ],
)
def test_what_one_side_lacks_at_its_ends(
    topic: ComparedTopic, source: tuple[int, int], here: tuple[int, int], result: str, note: str
) -> None:
    row = _judged(topic, source, here)
    assert row.result == result
    assert note in row.notes


def test_until_leaves_out_what_follows() -> None:
    row = _judged(PROMOTED, (0, 9), (0, 30), ((), (7,)), until=5)
    assert (row.result, row.notes, row.source_records) == ("equal", ["compared below 5, as --until says"], 5)


@pytest.mark.parametrize(
    ("is_linked", "lacking", "result"),
    [
        (True, ((3, 4), ()), "equal"),
        (True, ((), (3,)), "different"),
        (False, ((), (3,)), "equal"),
        (False, ((4,), (3,)), "equal"),
    ],
)
def test_what_is_removed_by_key_is_no_difference(
    is_linked: bool, lacking: tuple[Sequence[int], Sequence[int]], result: str
) -> None:
    """The source may clean while both are read; a copy is not cleaned before it is promoted."""
    topic = LINKED._replace(is_compacted=True, is_linked=is_linked)
    row = _judged(topic, (0, 9), (0, 9), lacking)
    assert row.result == result
    assert _judged(topic._replace(is_compacted=False), (0, 9), (0, 9), lacking).result == "different"
    if result == "equal":
        assert row.notes == [f"removed by key on one side, not compared: {len(lacking[0]) + len(lacking[1])} records"]
    else:
        assert row.notes == ["first difference at 3: the copy has no record; 1 only at the source"]


def test_a_sample_has_both_ends() -> None:
    ranges = ranges_of(CommittedBounds(100, 100_100), count=5, length=1_000)
    assert [each.start for each in ranges] == [100, 24_850, 49_600, 74_350, 99_100]
    assert ranges[-1].end == 100_100
    assert ranges_of(CommittedBounds(100, 5_100), count=5, length=1_000) == [CommittedBounds(100, 5_100)]
    assert ranges_of(CommittedBounds(7, 7)) == [CommittedBounds(7, 7)]


def test_a_sample_says_what_it_leaves_out() -> None:
    row = VerifiedPartition("orders", 0, sampled=5_000)
    whole = CommittedBounds(0, 100_000)
    judge(row, BothBounds(whole, whole, whole), LINKED, Comparison())
    assert row.notes == ["not compared: 95,000 of 100,000 offsets"]
