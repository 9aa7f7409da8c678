"""What a share group has done with the records of a partition, as bytes; and which acknowledgements a restore lost.

Place: the bytes are written by the group's coordinator (agent/groups/share) and are in share_partitions.kept; the rest
is for `headrace audit --lost`. Pure.
Invariant: an unknown format of the bytes is refused. A range is lost only if the group had done its records in an
earlier life of the metastore, and this life found them not done.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.storage.errors import CorruptError, InvalidError

FORMAT = 1
_HEAD = struct.Struct(">BI")
_RANGE = struct.Struct(">QIh")
"""First offset, number of records after it, attempts; -1 attempts: done. -2: no range, a mark."""
_MOST = 2**32 - 1
_DONE = -1
_SET_BY_HAND = -2


class KeptRange(NamedTuple):
    """A range as it is stored: records that are done, or were acquired at least once. Both ends included."""

    first: int
    last: int
    is_done: bool
    tries: int


def encode_kept(kept: Iterable[KeptRange], *, is_set_by_hand: bool = False) -> bytes:
    """Return the bytes of share_partitions.kept.

    `is_set_by_hand`: the start was set before any member read the topic. An agent of the release before takes its mark
    for a record that was never acquired.
    """
    rows = [
        _RANGE.pack(first, min(each.last - first, _MOST), _DONE if each.is_done else min(each.tries, 2**15 - 1))
        for each in kept
        for first in range(each.first, each.last + 1, _MOST + 1)
    ]
    if is_set_by_hand:
        rows.append(_RANGE.pack(2**63 - 1, 0, _SET_BY_HAND))
    return _HEAD.pack(FORMAT, len(rows)) + b"".join(rows)


def decode_kept(data: bytes, end: int) -> list[KeptRange]:
    """Return what is kept of records before `end`. CorruptError, or InvalidError for a newer format."""
    return [
        KeptRange(first, min(first + more, end - 1), tries == _DONE, max(tries, 0))
        for first, more, tries in _rows(data)
        if first < end and tries != _SET_BY_HAND
    ]


def was_set_by_hand(data: bytes) -> bool:
    """Return whether the start was set before any member read the topic. Errors as `decode_kept`."""
    return any(tries == _SET_BY_HAND for _, _, tries in _rows(data))


def _rows(data: bytes) -> list[tuple[int, int, int]]:
    try:
        version, count = _HEAD.unpack_from(data)
        if version != FORMAT:
            raise InvalidError(f"unknown format of a share partition: format={version}")
        if len(data) != _HEAD.size + count * _RANGE.size:
            raise CorruptError(f"stored share partition is damaged: bytes={len(data)} ranges={count}")
        return [_RANGE.unpack_from(data, _HEAD.size + at * _RANGE.size) for at in range(count)]
    except struct.error as error:
        raise CorruptError(f"stored share partition is damaged: {error}") from error


class GroupProgress(NamedTuple):
    """How far a group is in a partition: every record before `start_offset` is done, and what `kept` says of others."""

    start_offset: int
    kept: bytes

    def done(self, begun: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges that are done from `begun` on and before `end`, ascending, both ends included."""
        ranges = [(begun, min(self.start_offset, end) - 1)]
        ranges += [(max(each.first, begun), each.last) for each in decode_kept(self.kept, end) if each.is_done]
        return [(first, last) for first, last in ranges if first <= last]


def lost_ranges(answered: GroupProgress, begun: int, found: GroupProgress | None, end: int) -> list[tuple[int, int]]:
    """Return the records that the group had done, and that are not done in what a life of the metastore found.

    `begun`: the offset at which the group began. `found`: None if the life found nothing of the group there. `end`: the
    records of the earlier life end here; those that follow are others, or were lost themselves.
    """
    done = answered.done(begun, end)
    return _joined(done if found is None else _without(done, found.done(min(begun, found.start_offset), end)))


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ascending ranges with neighbours as one."""
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if joined and joined[-1][1] + 1 == first:
            first = joined.pop()[0]
        joined.append((first, last))
    return joined


def _without(ranges: Sequence[tuple[int, int]], taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of ascending ranges that are in none of `taken`, which is ascending."""
    left: list[tuple[int, int]] = []
    for first, last in ranges:
        for begin, stop in taken:
            if stop < first or begin > last:
                continue
            if first < begin:
                left.append((first, begin - 1))
            first = stop + 1
        if first <= last:
            left.append((first, last))
    return left
