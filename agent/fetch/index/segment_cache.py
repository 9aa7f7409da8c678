"""The segments of partitions that are read behind the tail: what the primary said, until the feed says otherwise.

Place: the second source of a fetch (locate.py), after the tail index, which passes the feed's rows on.
Invariant: for an offset that it holds, the answer is find_extents', as far as the feed was read: a swap, a move of the
log start or a deletion removes what it replaced before the feed's next row is applied. An answer of the primary is
kept only if the feed changed nothing since it was asked for (`changes`): it may be older than that change. At most
`extents_max` extents are held; the partition that was read the longest time ago goes first.
Answers of the primary may be newer than the feed, and older than answers that came before them: a swap or a cleaning
pass may be between any two of them. So parts of a run are joined only if the later one begins at the offset behind the
earlier one, and if each aborted transaction that ends in the run has its marker there (decisions/0063). Else the answer
replaces the run.
An extent's leader epoch is its records'. Of several keys with one range only the highest epoch's has extents: the swap
decided that (decisions/0005), so the cache has nothing to choose.
Source: KAFKA-20033 and KIP-405, RemoteLogMetadataCache.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from operator import attrgetter

from headrace.metastore.api.read import AbortedRange, Extent, FeedKind, FeedRow

EXTENTS_MAX = 65_536
"""Most extents over all partitions; about 20 MB."""

_base_offset = attrgetter("base_offset")
_last_offset = attrgetter("last_offset")


class SegmentCache:
    """Cache one run for each partition, of extents without a gap."""

    def __init__(self, extents_max: int = EXTENTS_MAX) -> None:
        self.changes = 0
        """Counts what the feed removed or may have removed. Read it before the primary is asked, pass it to `keep`."""
        self._extents_max = extents_max
        self._runs: OrderedDict[int, list[Extent]] = OrderedDict()
        self._aborted: dict[int, dict[int, AbortedRange]] = {}
        """Of the runs, by key and last offset."""
        self._held = 0

    @property
    def held_extents(self) -> int:
        """Number of extents held, over all partitions."""
        return self._held

    def from_offset(self, key: int, offset: int) -> list[Extent]:
        """The extents from the one that holds the offset to the run's end; empty if none holds it."""
        run = self._runs.get(key)
        if not run or not run[0].base_offset <= offset <= run[-1].last_offset:
            return []
        self._runs.move_to_end(key)
        return run[bisect_left(run, offset, key=_last_offset) :]

    def segment_at(self, key: int, offset: int) -> Extent | None:
        """The extent that holds the offset; None if it is not known here."""
        return next(iter(self.from_offset(key, offset)), None)

    def aborted(self, key: int) -> list[AbortedRange]:
        """The aborted transactions with offsets in the run of this partition, by last offset."""
        known = self._aborted.get(key)
        return [known[last] for last in sorted(known)] if known else []

    def keep(self, key: int, extents: Sequence[Extent], changes: int, aborted: Sequence[AbortedRange] = ()) -> None:
        """Take over an answer of the primary that was asked for at `changes`; `aborted` is all that will ever be in

        `extents`: no transaction with an offset there is open.
        """
        if changes != self.changes or not extents:
            return
        run = self._runs.get(key, [])
        before = run[: bisect_left(run, extents[0].base_offset, key=_base_offset)]
        after = run[bisect_right(run, extents[-1].last_offset, key=_base_offset) :]
        joined = [*_continued(before, extents[0].base_offset), *extents, *_continuing(extents[-1].last_offset, after)]
        ranges = {a.last_offset: a for a in aborted}
        if len(joined) > len(extents):
            all_ranges = self._aborted.get(key, {}) | ranges
            if _have_markers(joined, all_ranges):
                ranges = all_ranges
            else:
                joined = list(extents)
        self._aborted.pop(key, None)
        if ranges:
            self._aborted[key] = ranges
        self._put(key, joined)

    def apply(self, row: FeedRow) -> None:
        """Apply what the feed says of extents that may be held."""
        if row.kind in (FeedKind.COMMIT, FeedKind.TRANSACTION):
            return
        self.changes += 1
        if row.kind is FeedKind.SWAP:
            for extent in row.extents:
                self._drop_range(extent.partition_key, extent.base_offset, extent.last_offset)
        elif row.kind is FeedKind.LOG_START:
            for move in row.log_starts:
                self._drop_range(move.partition_key, 0, move.log_start_offset - 1)
        for key in row.deleted_keys:
            self._put(key, [])

    def forget(self, keys: Sequence[int] | None = None) -> None:
        """Everything, or what is held of these partitions."""
        self.changes += 1
        for key in list(self._runs) if keys is None else keys:
            self._put(key, [])

    def held_keys(self) -> list[int]:
        """The partitions with extents here."""
        return list(self._runs)

    def _drop_range(self, key: int, base_offset: int, last_offset: int) -> None:
        """Return the run without the extents that have an offset of the range; of what is left, the part after it."""
        run = self._runs.get(key)
        if run and run[0].base_offset <= last_offset and base_offset <= run[-1].last_offset:
            after = run[bisect_right(run, last_offset, key=_base_offset) :]
            self._put(key, after or run[: bisect_left(run, base_offset, key=_last_offset)])

    def _put(self, key: int, run: list[Extent]) -> None:
        self._held += len(run) - len(self._runs.pop(key, ()))
        if run:
            self._runs[key] = run[: self._extents_max]
            self._held -= len(run) - len(self._runs[key])
        if key in self._aborted:
            self._trim_aborted(key)
        while self._held > self._extents_max:
            oldest, held = self._runs.popitem(last=False)
            self._held -= len(held)
            self._aborted.pop(oldest, None)

    def _trim_aborted(self, key: int) -> None:
        """Forget those without an offset in the run."""
        run = self._runs.get(key)
        if run is None:
            del self._aborted[key]
            return
        first, last = run[0].base_offset, run[-1].last_offset
        self._aborted[key] = {
            end: a for end, a in self._aborted[key].items() if end >= first and a.first_offset <= last
        }


def _continued(before: Sequence[Extent], first: int) -> Sequence[Extent]:
    """Return `before` if it ends where an extent at offset `first` continues it, else nothing."""
    return before if before and before[-1].last_offset + 1 == first else ()


def _continuing(last: int, after: Sequence[Extent]) -> Sequence[Extent]:
    """Return `after` if it begins behind offset `last`, else nothing."""
    return after if after and after[0].base_offset == last + 1 else ()


def _have_markers(run: Sequence[Extent], ranges: Mapping[int, AbortedRange]) -> bool:
    """Return whether each aborted transaction that ends in the run has its marker there.

    Without it, a reader skips everything that the producer committed later.
    """
    first, last = run[0].base_offset, run[-1].last_offset
    ends = (end for end in ranges if first <= end <= last)
    return all(run[bisect_left(run, end, key=_last_offset)].file_id is None for end in ends)
