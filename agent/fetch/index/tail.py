"""What the tail index holds of partitions: newest extents, the look-ups made of them, ends of files, recent drops.

Place: in the tail index (index.py), which fills a Tail from the commit feed, the primary's answers and this agent's
commits. A Lookup is the result of one extent query: what is known about one partition of a fetch. It is made by
index.py, or by locate.py from the metastore's answer; read by handler.py and deliver.py.
Invariant: extents of a Tail and of a Lookup are in offset order, without a gap; the first of a Lookup contains the
requested offset. Extents that this agent committed and the feed has not brought stay in `ahead` until it does, or
brings something else in their place: then they are lost.
A log start that was asked for before its partition was dropped (it was deleted, or its log start moved back) is not
true any more. Bounded: of more than DROPPED_MAX partitions, those that were dropped first count as if they were not;
calls that are under way are short. How far a file is read ahead depends on where its last live byte is that the feed
mentioned: of more than FILES_MAX files, the one that was mentioned first is forgotten first.
"""

from __future__ import annotations

import enum
import uuid
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.metastore.api.read import NONE_OPEN, AbortedRange, Extent, ExtentQuery


class LookupStatus(enum.Enum):
    """The result of a partition's look-up."""

    FOUND = enum.auto()
    OUT_OF_RANGE = enum.auto()
    GONE = enum.auto()
    """Deleted: the partition does not exist any more."""
    UNAVAILABLE = enum.auto()
    """The metastore was needed and did not answer."""
    FENCED = enum.auto()
    """What is there has a later leader epoch than the one that the reader knows."""


class Lookup(NamedTuple):
    """Answer to one ExtentQuery. Offsets are -1 if unknown."""

    status: LookupStatus
    log_start_offset: int = -1
    high_watermark: int = -1
    extents: Sequence[Extent] = ()
    """The extents from the one with the offset on, in order; empty at the high watermark."""
    recent: bool = False
    """These extents reach the high watermark or come from the index: other readers will need them too."""
    cut: bool = False
    """The budget of the look-up ended here: there is more to read now, and the next fetch finds it."""
    last_stable_offset: int = -1
    """No later than the partition's: below it, `aborted` has everything that a reader must skip."""
    aborted: Sequence[AbortedRange] = ()
    """Those with offsets in `extents`, and maybe later ones."""


def known_part(lookup: Lookup, leader_epoch: int) -> Lookup:
    """Return what a reader that names the leader epoch it knows may get: extents up to that epoch; all for -1.

    A client that gets records of a later epoch, while it asks where its own one ended, takes the answer for a
    truncation and reads again from there (KIP-320). Kafka's old leader has no such records.
    """
    if leader_epoch < 0 or not lookup.extents or lookup.extents[-1].leader_epoch <= leader_epoch:
        return lookup
    extents = [extent for extent in lookup.extents if extent.leader_epoch <= leader_epoch]
    return lookup._replace(extents=extents) if extents else lookup._replace(status=LookupStatus.FENCED, extents=())


def stable_part(query: ExtentQuery, lookup: Lookup) -> Lookup:
    """Return what a reader with isolation read_committed finds: the extents with stable offsets from its offset on."""
    end = lookup.last_stable_offset
    if lookup.status is not LookupStatus.FOUND or not lookup.extents or lookup.extents[-1].last_offset < end:
        return lookup
    extents = [extent for extent in lookup.extents if query.offset < end and extent.base_offset < end]
    return lookup._replace(extents=extents, cut=False)


def up_to(extents: list[Extent], first: int, max_bytes: int) -> list[Extent]:
    """`extents[first:]` until they hold `max_bytes`; at least one."""
    held = 0
    for end in range(first, len(extents)):
        held += extents[end].length
        if held >= max_bytes:
            return extents[first : end + 1]
    return extents[first:]


def is_seamless(extents: Sequence[Extent], offset: int) -> bool:
    """Return whether extents hold the offset and what is behind it, each offset once; False if there are none."""
    if not extents or extents[0].base_offset > offset:
        return False
    end = extents[0].base_offset
    for extent in extents:
        if extent.base_offset != end:
            return False
        end = extent.last_offset + 1
    return True


DROPPED_MAX = 65_536


class LogStartMark(NamedTuple):
    """When the primary was asked for a log start: in which history, and generation of the index."""

    history: int
    generation: int


class DroppedPartitions:
    """The generation of the index in which each partition was dropped, by its key."""

    def __init__(self) -> None:
        self._dropped: OrderedDict[int, int] = OrderedDict()

    def note(self, keys: Iterable[int], generation: int) -> None:
        """Note that these were dropped."""
        for key in keys:
            self._dropped[key] = generation
            self._dropped.move_to_end(key)
        while len(self._dropped) > DROPPED_MAX:
            self._dropped.popitem(last=False)

    def was_dropped(self, key: int, since: LogStartMark) -> bool:
        """Return whether the partition was dropped since then."""
        return self._dropped.get(key, 0) > since.generation


FILES_MAX = 8_192
"""Number of files with a known live end."""


class FileEnds:
    """Byte positions by file."""

    def __init__(self) -> None:
        self._ends: OrderedDict[uuid.UUID, int] = OrderedDict()

    def note(self, extent: Extent) -> None:
        """Note an extent; a marker is in no file."""
        if (file_id := extent.file_id) is not None:
            self._ends[file_id] = max(extent.position + extent.length, self._ends.get(file_id, 0))
            if len(self._ends) > FILES_MAX:
                self._ends.popitem(last=False)

    def end_of(self, file_id: uuid.UUID) -> int:
        """Return the position behind the last one; 0 if none is known."""
        return self._ends.get(file_id, 0)

    def clear(self) -> None:
        """Forget all."""
        self._ends.clear()


class Tail:
    """One partition. Offsets are lower bounds until `confirmed`, by the primary or by the feed's very first row.

    Each change of the first open offset comes with an append, so what is open is a function of a log's end.
    `first_open_offset` is that of the log up to `fed_to`, as far as the feed brought it, and this agent's commits,
    which open and end nothing: of a transaction that the
    primary says is over, the feed may not have brought the end, and then `aborted` does not have it. So what the
    primary says counts only when the feed has come as far (`known_to`).
    """

    __slots__ = (
        "aborted",
        "ahead",
        "confirmed",
        "extents",
        "fed_to",
        "first_open_offset",
        "high_watermark",
        "known_to",
        "log_start_offset",
        "open_at_primary",
    )

    def __init__(self) -> None:
        self.extents: list[Extent] = []
        self.high_watermark = 0
        self.log_start_offset = 0
        self.confirmed = False
        self.first_open_offset: int | None = None
        self.fed_to: int | None = None
        """None: the feed has brought nothing."""
        self.open_at_primary: int | None = None
        self.known_to = 0
        self.aborted: list[AbortedRange] = []
        """Those with a marker in `extents`, and maybe earlier ones."""
        self.ahead: deque[Extent] = deque()
        """The newest of `extents`, if this agent committed them and the feed has not brought them yet."""

    @property
    def end(self) -> int | None:
        """The offset behind the newest extent; None without extents."""
        return self.extents[-1].last_offset + 1 if self.extents else None

    def feed_catches_up(self, extent: Extent) -> bool:
        """Return whether the feed's extent is one that is ahead, or all of several: they are no longer ahead.

        False also if it is another one in their place: then they are of another history.
        """
        if not self.ahead or self.ahead[0].base_offset != extent.base_offset:
            return False
        while self.ahead and self.ahead[0].last_offset <= extent.last_offset:
            if self.ahead[0].source != extent.source:
                return False
            last = self.ahead.popleft().last_offset
            if last == extent.last_offset:
                return True
        return False

    def note_fed(self, first_open_offset: int | None, end: int) -> bool:
        """Return what a row of the feed says; None: what is open did not change. Whether offsets became stable."""
        before, was_fed = self.first_open_offset, self.fed_to is not None
        self.fed_to = max(end, self.fed_to or 0)  # this agent's commits may be further
        if first_open_offset is not None:
            self.first_open_offset = first_open_offset
        elif before is None and end >= self.known_to:
            self.first_open_offset = self.open_at_primary
        if before is None:
            return was_fed and self.first_open_offset is not None
        return before not in (self.first_open_offset, NONE_OPEN)

    def note_primary(self, first_open_offset: int, end: int) -> None:
        """Note what the primary says of the log up to `end`."""
        if end >= self.known_to:
            self.open_at_primary, self.known_to = first_open_offset, end
        if self.first_open_offset is None and self.fed_to is not None and self.fed_to >= end:
            self.first_open_offset = first_open_offset  # the rows since then said nothing else

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset: at most the partition's, and as far as `aborted` goes."""
        open_offset, end = self.first_open_offset, self.fed_to
        if end is None:
            open_offset, end = self.open_at_primary, self.known_to
        if open_offset is None:
            return self.log_start_offset
        return max(end if open_offset == NONE_OPEN else open_offset, self.log_start_offset)

    def found(self, extents: list[Extent], offset: int) -> Lookup:
        """Return the look-up of a reader at `offset`, for whom these extents are."""
        return Lookup(
            LookupStatus.FOUND,
            self.log_start_offset,
            self.high_watermark,
            extents,
            recent=True,
            last_stable_offset=self.last_stable_offset,
            aborted=[a for a in self.aborted if a.last_offset >= offset],
        )
