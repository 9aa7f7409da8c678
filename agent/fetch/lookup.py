"""The result of one extent query: what is known about one partition of a fetch.

Place: made by index.py from the commit feed, or by locate.py from the metastore's answer; read by handler.py and
deliver.py.
Invariant: extents are in offset order, without a gap; the first contains the requested offset.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from headrace.metastore.api.read import AbortedRange, Extent, ExtentQuery


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
