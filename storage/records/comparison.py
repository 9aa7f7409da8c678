"""Compare two sequences of records that should be the same, by offset, and give each one a checksum.

Place: under `headrace link verify`, which reads a partition of a source and of its copy. Pure.
Invariant: a checksum does not depend on how records are divided into batches or compressed, but on their number, and on
each one's offset, timestamp, key, value and headers, in order. Names of headers count as readers get them: what is not
UTF-8 is U+FFFD.
Invariant of memory: one batch of either side and its columns; the time is linear in the records of both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy

from headrace.storage.records.codec import RecordColumns

DIGEST_BYTES = 16
WINDOW_MAX = 65_536
"""Records that are compared at once while all are equal."""
_GROWTH = 8


class RecordDigest:
    """The checksum of records in order."""

    def __init__(self) -> None:
        """Begin without records."""
        self.records = 0
        self._columns = [hashlib.blake2b(digest_size=DIGEST_BYTES) for _ in range(11)]
        """Digests of offsets, timestamps, then lengths and bytes of keys, of values; of headers their numbers, then
        lengths and bytes of names, of values."""

    def add(self, records: RecordColumns) -> None:
        """Add records that follow."""
        self.records += len(records.offsets)
        pairs = [pair for headers in records.headers for pair in headers]
        offsets, times, *texts = self._columns
        offsets.update(records.offsets.astype("<i8").tobytes())
        times.update(records.timestamps.astype("<i8").tobytes())
        texts[4].update(_numbers([len(headers) for headers in records.headers]))
        names = [name.encode("utf-8", "surrogatepass") for name, _ in pairs]
        for at, column in ((0, records.keys), (2, records.values), (5, names), (7, [value for _, value in pairs])):
            texts[at].update(_numbers([-1 if each is None else len(each) for each in column]))
            texts[at + 1].update(b"".join(each for each in column if each))

    def copy(self) -> Self:
        """The checksum so far, which goes on independently."""
        found = type(self)()
        found.records = self.records
        found._columns = [each.copy() for each in self._columns]
        return found

    def hex(self) -> str:
        """The checksum as 32 hexadecimal digits."""
        return hashlib.blake2b(b"".join(each.digest() for each in self._columns), digest_size=DIGEST_BYTES).hexdigest()


def _numbers(values: Sequence[int]) -> bytes:
    return numpy.array(values, "<i8").tobytes()


class RecordDifferences(NamedTuple):
    """What is not the same. `first_offset` -1: nothing."""

    first_offset: int = -1
    first: str = ""
    """What differs there: fields of the record, or which side lacks it."""
    changed: int = 0
    """Records that both sides have at an offset, with other contents."""
    only_source: int = 0
    only_copy: int = 0
    first_changed: int = -1
    first_only_source: int = -1
    first_only_copy: int = -1


class Comparison:
    """Compares ranges of one partition, one after another: call `compare` for each."""

    def __init__(self) -> None:
        """Nothing is compared yet."""
        self._digest = RecordDigest()
        self._digests: tuple[RecordDigest, RecordDigest] | None = None
        """The digests of both sides, once they differ; until then `_digest` is that of both."""
        self.differences = RecordDifferences()

    @property
    def source(self) -> RecordDigest:
        """The checksum of all records of the source that were read."""
        return self._digests[0] if self._digests else self._digest

    @property
    def copy(self) -> RecordDigest:
        """The checksum of all records of the copy that were read."""
        return self._digests[1] if self._digests else self._digest

    def compare(self, source: Iterable[RecordColumns], copy: Iterable[RecordColumns]) -> None:
        """Compare a range: all of its records, in the order of offsets."""
        left, right, window = _Rows(iter(source)), _Rows(iter(copy)), WINDOW_MAX
        while left.fill() and right.fill():
            size = min(left.size, right.size, window)
            ours, theirs = left.head(size), right.head(size)
            if _are_equal(ours, theirs):
                self._add(ours, theirs)
                left.skip(size)
                right.skip(size)
                window = min(window * _GROWTH, WINDOW_MAX)
            elif size > 1:
                window = max(size // _GROWTH, 1)
            else:
                self._note(left, right)
        while left.fill():
            self._only(left, left.size, is_source=True)
        while right.fill():
            self._only(right, right.size, is_source=False)

    def _note(self, left: _Rows, right: _Rows) -> None:
        """The next records of both sides are not equal."""
        ours, theirs = left.head(1), right.head(1)
        offset, other = int(ours.offsets[0]), int(theirs.offsets[0])
        if offset < other:
            self._only(left, left.below(other), is_source=True)
        elif other < offset:
            self._only(right, right.below(offset), is_source=False)
        else:
            self._differ(offset, f"{', '.join(_changed(ours, theirs))} differ", "changed", 1)
            self._add(ours, theirs)
            left.skip(1)
            right.skip(1)

    def _only(self, rows: _Rows, count: int, *, is_source: bool) -> None:
        found = rows.head(count)
        side, lacking = ("only_source", "the copy") if is_source else ("only_copy", "the source")
        self._differ(int(found.offsets[0]), f"{lacking} has no record", side, count)
        (self.source if is_source else self.copy).add(found)
        rows.skip(count)

    def _differ(self, offset: int, what: str, kind: str, count: int) -> None:
        if self._digests is None:
            self._digests = self._digest, self._digest.copy()
        found = self.differences
        changes: dict[str, int | str] = {kind: getattr(found, kind) + count}
        if getattr(found, f"first_{kind}") < 0:
            changes[f"first_{kind}"] = offset
        if found.first_offset < 0:
            changes |= {"first_offset": offset, "first": what}
        self.differences = found._replace(**changes)  # type: ignore[arg-type]

    def _add(self, ours: RecordColumns, theirs: RecordColumns) -> None:
        self.source.add(ours)
        if self._digests is not None:
            self.copy.add(theirs)


class _Rows:
    """Records that come in pieces, taken in any number."""

    def __init__(self, pieces: Iterator[RecordColumns]) -> None:
        self._pieces = pieces
        self._piece: RecordColumns | None = None
        self._at = 0

    @property
    def size(self) -> int:
        """Records at hand."""
        return 0 if self._piece is None else len(self._piece.offsets) - self._at

    def fill(self) -> bool:
        """Return whether there is a record at hand; takes pieces until there is one."""
        while not self.size:
            self._piece, self._at = next(self._pieces, None), 0
            if self._piece is None:
                return False
        return True

    def head(self, count: int) -> RecordColumns:
        """The next records: so many of those at hand."""
        assert self._piece is not None
        offsets, timestamps, keys, values, headers = self._piece
        place = slice(self._at, self._at + count)
        return RecordColumns(offsets[place], timestamps[place], keys[place], values[place], headers[place])

    def below(self, offset: int) -> int:
        """Return how many of those at hand have a lower offset."""
        assert self._piece is not None
        return int(numpy.searchsorted(self._piece.offsets[self._at :], offset))

    def skip(self, count: int) -> None:
        """Go past so many."""
        self._at += count


def _are_equal(ours: RecordColumns, theirs: RecordColumns) -> bool:
    return numpy.array_equal(ours.offsets, theirs.offsets) and not any(_changed(ours, theirs))


def _changed(ours: RecordColumns, theirs: RecordColumns) -> Iterator[str]:
    """Yield the fields in which records differ; both sides have as many."""
    if not numpy.array_equal(ours.timestamps, theirs.timestamps):
        yield "timestamp"
    for name, one, other in (("key", ours.keys, theirs.keys), ("value", ours.values, theirs.values)):
        if one != other:
            yield name
    if ours.headers != theirs.headers:
        yield "headers"
