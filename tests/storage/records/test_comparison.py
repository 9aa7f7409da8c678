"""X14: two sequences of records are compared by offset; a checksum does not depend on batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from headrace.storage.records import comparison
from headrace.storage.records.codec import Record, RecordColumns, encode_batch, open_batch
from headrace.storage.records.comparison import Comparison, RecordDigest
from headrace.storage.records.compression import Codec
from tests.patch import Patch

pytestmark = pytest.mark.requirement("X14")
COUNT = 400


def _records(rng: random.Random, count: int = COUNT) -> list[Record]:
    """Records with gaps between their offsets, some without key, value or headers, some with empty ones."""
    offset, found = 0, []
    for number in range(count):
        offset += rng.choice((1, 1, 1, 7))
        headers = [(f"h{number % 5}", rng.choice((None, b"", b"x" * (number % 9)))) for _ in range(rng.randrange(3))]
        key, value = (rng.choice((None, b"", rng.randbytes(number % 17))) for _ in range(2))
        found.append(Record(offset, 1_700_000_000_000 + number, key, value, headers))
    return found


def _pieces(records: Sequence[Record], rng: random.Random, *, most: int = 90) -> Iterator[RecordColumns]:
    """The records, divided anywhere into compressed batches."""
    at = 0
    while at < len(records):
        some = records[at : at + rng.randrange(1, most)]
        data = encode_batch(some, codec=rng.choice((Codec.NONE, Codec.LZ4, Codec.ZSTD)), base_offset=some[0].offset)
        yield open_batch(memoryview(data)).columns()
        at += len(some)


def _compared(source: Sequence[Record], copy: Sequence[Record], seed: int = 1) -> Comparison:
    found = Comparison()
    found.compare(_pieces(source, random.Random(seed)), _pieces(copy, random.Random(seed + 1), most=30))
    return found


def _sum(records: Sequence[Record], seed: int) -> str:
    digest = RecordDigest()
    for piece in _pieces(records, random.Random(seed)):
        digest.add(piece)
    assert digest.records == len(records)
    return digest.hex()


@pytest.mark.parametrize("seed", range(3))
def test_the_same_records_are_equal_in_any_batches(seed: int) -> None:
    records = _records(random.Random(seed))
    found = _compared(records, records, seed)
    assert found.differences.first_offset == -1
    assert found.source.records == found.copy.records == COUNT
    assert found.source.hex() == found.copy.hex() == _sum(records, seed + 9)


def _with_byte(record: Record, name: str) -> Record:
    match name:
        case "key" | "value":
            return record._replace(**{name: (getattr(record, name) or b"") + b"!"})  # type: ignore[arg-type]
        case "timestamp":
            return record._replace(timestamp=record.timestamp + 1)
        case _:
            return record._replace(headers=[*record.headers, ("h", None)])


@pytest.mark.parametrize("name", ["timestamp", "key", "value", "headers"])
@pytest.mark.parametrize("at", [0, 211, COUNT - 1])
def test_one_field_of_one_record_is_found(name: str, at: int) -> None:
    records = _records(random.Random(5))
    other = [*records[:at], _with_byte(records[at], name), *records[at + 1 :]]
    found = _compared(records, other)
    differences = found.differences
    assert (differences.first_offset, differences.first) == (records[at].offset, f"{name} differ")
    assert (differences.changed, differences.only_source, differences.only_copy) == (1, 0, 0)
    assert (found.source.hex(), found.copy.hex()) == (_sum(records, 1), _sum(other, 2))
    assert found.source.hex() != found.copy.hex()


@pytest.mark.parametrize("at", [0, 211, COUNT - 1])
def test_a_record_that_one_side_lacks_is_found(at: int) -> None:
    records = _records(random.Random(6))
    less = [*records[:at], *records[at + 1 :]]
    lost, more = _compared(records, less).differences, _compared(less, records).differences
    assert (lost.first_offset, lost.first, lost.only_source) == (records[at].offset, "the copy has no record", 1)
    assert (more.first_offset, more.first, more.only_copy) == (records[at].offset, "the source has no record", 1)
    assert (lost.changed, lost.only_copy, more.changed, more.only_source) == (0, 0, 0, 0)
    assert _compared(records, less).copy.records == COUNT - 1


def _at(records: Sequence[Record], first: int) -> list[Record]:
    return [record._replace(offset=first + number) for number, record in enumerate(records)]


def test_a_doubled_record_shifts_all_that_follow() -> None:
    records = _at([record._replace(key=b"%d" % number) for number, record in enumerate(_records(random.Random(7)))], 0)
    doubled = _at([*records[:100], *records[99:]], 0)
    found = _compared(records, doubled).differences
    assert (found.first_offset, found.changed, found.only_copy) == (100, COUNT - 100, 1)


def test_other_offsets_of_the_same_records_are_found() -> None:
    records = _at(_records(random.Random(8)), 0)
    shifted = [*records[:300], *(record._replace(offset=record.offset + 1) for record in records[300:])]
    found = _compared(records, shifted).differences
    assert (found.first_offset, found.only_source, found.only_copy) == (300, 1, 1)
    assert found.first_only_copy == COUNT


def test_bytes_that_move_to_the_next_field_change_the_checksum() -> None:
    one = [Record(0, 1, b"ab", b"c", [("n", b"v")]), Record(1, 1, None, b"")]
    others = [
        [Record(0, 1, b"a", b"bc", [("n", b"v")]), Record(1, 1, None, b"")],
        [Record(0, 1, b"ab", b"c", [("nv", b"")]), Record(1, 1, None, b"")],
        [Record(0, 1, b"ab", b"c"), Record(1, 1, None, b"", [("n", b"v")])],
        [Record(0, 1, b"ab", b"c", [("n", b"v")]), Record(1, 1, b"", b"")],
        [Record(0, 1, b"ab", b"c", [("n", b"v")]), Record(1, 1, None, None)],
    ]
    assert len({_sum(each, 1) for each in (one, *others)}) == 1 + len(others)
    assert all(_compared(one, other).differences.changed for other in others)


def test_the_tests_above_see_a_field_that_is_left_out(patch: Patch) -> None:
    """A planted bug: values are not compared."""
    records = _records(random.Random(9))
    other = [_with_byte(records[0], "value"), *records[1:]]
    assert _compared(records, other).differences.changed == 1
    patch.wrap(comparison, "_changed", lambda right: lambda *both: (each for each in right(*both) if each != "value"))
    assert _compared(records, other).differences.first_offset == -1


def test_a_batch_without_records_is_passed() -> None:
    data = memoryview(encode_batch([Record(3, 1, b"k", b"v")], base_offset=3))
    empty = open_batch(data).columns().between(9, 12)
    found = Comparison()
    found.compare(iter([empty, open_batch(data).columns(), empty]), iter([open_batch(data).columns()]))
    assert (found.differences.first_offset, found.source.records) == (-1, 1)
