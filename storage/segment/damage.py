"""Find what is sound in a run of batches that has damaged bytes, and which offsets the damage covers. Pure.

    piece     a part of the run: one sound batch, or damaged bytes between sound batches
    mark      a batch boundary that the file's footer names, with its real offset; the footer has its own checksum
    claim     what the header of a damaged batch says of itself: only a hint

Place: an agent that meets damage asks for what is readable behind it (agent/fetch/files/damage.py); `headrace damage`
makes a sound copy of the extent from the pieces; `headrace audit --deep` names the offsets.
Invariant: the pieces cover the run's bytes and offsets without a gap or overlap, in order. A piece is sound only if its
checksum is right and its offsets follow from the run's ends, from a mark, or from headers with a sum that fits the
whole run. Where sound bytes have no certain offsets they count as damaged: no record is ever given a wrong offset.
A batch that is only found by searching its header counts only if sound batches follow it up to a mark or the run's end:
the value of a record may be a batch, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.storage.records.header import (
    HEADER_BYTES,
    LENGTH_OFFSET,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    MAGIC_OFFSET,
    BatchHeader,
    batch_crc,
    read_header,
)

_MAGIC_BYTE = bytes((MAGIC,))


class BatchRun(NamedTuple):
    """Consecutive batches of one partition in a segment file, as the metastore's row of the extent says."""

    position: int
    length: int
    base_offset: int
    last_offset: int


class BatchMark(NamedTuple):
    """A batch boundary inside a run."""

    position: int
    offset: int


class Piece(NamedTuple):
    """A part of a run. `why` is empty for a sound batch."""

    position: int
    length: int
    base_offset: int
    last_offset: int
    why: str = ""
    claim: BatchHeader | None = None
    """The header of the damaged batch, if the piece is exactly one batch by its framing."""

    @property
    def end(self) -> int:
        """The byte position behind it."""
        return self.position + self.length


class _Part:
    """Sound batches that follow each other (position, size, offsets), or damaged bytes."""

    __slots__ = ("batches", "end", "offset", "start", "why")

    def __init__(self, start: int, why: str = "") -> None:
        self.start = self.end = start
        self.why = why
        self.batches: list[tuple[int, int, int]] = []
        self.offset: int | None = None
        """The first offset, if it is certain."""

    @property
    def count(self) -> int:
        return sum(count for _, _, count in self.batches)


def pieces(data: memoryview, run: BatchRun, marks: Sequence[BatchMark] = ()) -> list[Piece]:
    """Return the pieces of the run's bytes. `marks` in order of position, all inside the run."""
    parts = _parts(data, run, marks)
    if not _place(parts, data, run, marks):
        return [Piece(*run, why="the batches have other offsets than the metastore's row")]
    found: list[Piece] = []
    offset = run.base_offset
    ends = [*(part.offset for part in parts[1:]), run.last_offset + 1]
    lost: _Part | None = None
    for part, end in zip(parts, ends, strict=True):
        if part.why or part.offset is None:
            lost = lost or _Part(part.start, part.why or "its offsets are not known")
            lost.end = part.end
            if end is not None:
                if end <= offset:
                    return [Piece(*run, why="the batches have other offsets than the metastore's row")]
                found.append(_damaged(data, run, lost, offset, end - 1))
                offset, lost = end, None
            continue
        for position, size, count in part.batches:
            found.append(Piece(position, size, offset, offset + count - 1))
            offset += count
    return found


def damaged(found: Sequence[Piece]) -> list[Piece]:
    """Return the damaged ones."""
    return [piece for piece in found if piece.why]


def _damaged(data: memoryview, run: BatchRun, part: _Part, first: int, last: int) -> Piece:
    header = _header(data, part.start - run.position)
    is_one = header is not None and header.size == part.end - part.start
    return Piece(part.start, part.end - part.start, first, last, part.why, header if is_one else None)


def _parts(data: memoryview, run: BatchRun, marks: Sequence[BatchMark]) -> list[_Part]:
    """Return sound batches and damaged bytes in turns."""
    borders = sorted({mark.position - run.position for mark in marks} | {len(data)})
    parts: list[_Part] = []
    at = 0
    while at < len(data):
        found = _sound(data, at, borders)
        if found is None:
            part = _Part(run.position + at, _why(data, at))
            at = _resume(data, at, borders)
            part.end = run.position + at
            if parts and parts[-1].why:
                parts[-1].end = part.end
            else:
                parts.append(part)
            continue
        size, count = found
        if not parts or parts[-1].why:
            parts.append(_Part(run.position + at))
        parts[-1].batches.append((run.position + at, size, count))
        at += size
        parts[-1].end = run.position + at
    return parts


def _place(parts: Sequence[_Part], data: memoryview, run: BatchRun, marks: Sequence[BatchMark]) -> bool:
    """Give the sound parts their first offsets; False if what is known of them contradicts itself."""
    offsets = {mark.position: mark.offset for mark in marks}
    for number, part in enumerate(parts):
        if part.why:
            continue
        known = {run.base_offset} if number == 0 else set()
        if number == len(parts) - 1:
            known.add(run.last_offset + 1 - part.count)
        before = 0
        for position, _, count in part.batches:
            if position in offsets:
                known.add(offsets[position] - before)
            before += count
        if len(known) > 1:
            return False
        part.offset = known.pop() if known else None
    if any(part.offset is None and not part.why for part in parts):
        _place_by_claims(parts, data, run)
    return True


def _place_by_claims(parts: Sequence[_Part], data: memoryview, run: BatchRun) -> None:
    """Believe the headers of the damaged batches if all of them together fit the run."""
    offset = run.base_offset
    firsts: list[int] = []
    for part in parts:
        firsts.append(offset)
        if not part.why:
            offset += part.count
            continue
        at, end = part.start - run.position, part.end - run.position
        while at < end:
            header = _header(data, at)
            if header is None or at + header.size > end:
                return
            offset += header.last_offset_delta + 1
            at += header.size
    if offset != run.last_offset + 1:
        return
    if all(part.offset in (None, first) for part, first in zip(parts, firsts, strict=True)):
        for part, first in zip(parts, firsts, strict=True):
            part.offset = None if part.why else first


def _header(data: memoryview, at: int) -> BatchHeader | None:
    """Return the header at `at` if it can be one: by magic, length and number of offsets."""
    if at + HEADER_BYTES > len(data):
        return None
    header = read_header(data, at)
    fits = HEADER_BYTES <= header.size <= len(data) - at
    return header if header.magic == MAGIC and fits and header.last_offset_delta >= 0 else None


def _sound(data: memoryview, at: int, borders: Sequence[int]) -> tuple[int, int] | None:
    """Return (size, number of offsets) of the sound batch at `at`; None if there is none."""
    header = _header(data, at)
    if header is None or batch_crc(data[at : at + header.size]) != header.crc:
        return None
    if any(at < border < at + header.size for border in borders):
        return None
    return header.size, header.last_offset_delta + 1


def _why(data: memoryview, at: int) -> str:
    return "not a batch" if _header(data, at) is None else "checksum mismatch"


def _resume(data: memoryview, at: int, borders: Sequence[int]) -> int:
    """Return where the bytes may be sound again after the damaged ones at `at`: a border at the latest."""
    border = next(border for border in borders if border > at)
    header = _header(data, at)
    if header is not None and at + header.size <= border:
        end = at + header.size
        if end == border or _sound(data, end, borders) is not None:
            return end
    place = at + 1
    while (found := _find(data, place + MAGIC_OFFSET, border)) >= 0:
        place = found - MAGIC_OFFSET
        if _leads_to(data, place, border, borders):
            return place
        place += 1
    return border


def _find(data: memoryview, first: int, border: int) -> int:
    """Return the next place of a magic byte behind a length that fits; -1 if there is none."""
    body = bytes(data[first:border])
    found = body.find(_MAGIC_BYTE)
    while found >= 0:
        start = first + found - MAGIC_OFFSET
        length = int.from_bytes(data[start + LENGTH_OFFSET : start + LENGTH_PREFIX_BYTES], "big", signed=True)
        if HEADER_BYTES <= length + LENGTH_PREFIX_BYTES <= border - start:
            return first + found
        found = body.find(_MAGIC_BYTE, found + 1)
    return -1


def _leads_to(data: memoryview, at: int, border: int, borders: Sequence[int]) -> bool:
    """Return whether sound batches follow each other from `at` up to the border."""
    while at < border:
        found = _sound(data, at, borders)
        if found is None:
            return False
        at += found[0]
    return True
