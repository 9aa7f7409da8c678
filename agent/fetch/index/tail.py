"""One partition's newest extents and offsets, as far as this agent knows them.

Place: in the tail index (index.py), which fills it from the commit feed, the primary's answers and this agent's
commits.
Invariant: `extents` have no gap. Those that this agent committed and the feed has not brought stay in `ahead` until it
does, or brings something else in their place: then they are lost.
"""

from __future__ import annotations

from collections import deque

from headrace.agent.fetch.lookup import Lookup, LookupStatus
from headrace.metastore.api.read import NONE_OPEN, AbortedRange, Extent


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
