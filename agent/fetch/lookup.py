"""What is known of one partition of a fetch: the answer to one extent query.

Place: made by index.py from the commit feed, or by locate.py from the metastore's answer; read by handler.py and
deliver.py.
Invariant: extents are in the order of their offsets, without a gap; the first holds the offset that was asked for.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from headrace.metastore.api.read import Extent


class LookupStatus(enum.Enum):
    """How a partition's look-up ended."""

    FOUND = enum.auto()
    OUT_OF_RANGE = enum.auto()
    GONE = enum.auto()
    """Deleted: no such partition any more."""
    UNAVAILABLE = enum.auto()
    """The metastore had to be asked and did not answer."""


class Lookup(NamedTuple):
    """Answer to one ExtentQuery. Offsets are -1 when not known."""

    status: LookupStatus
    log_start_offset: int = -1
    high_watermark: int = -1
    extents: Sequence[Extent] = ()
    """From the one that holds the offset on, in order; empty at the high watermark."""
    recent: bool = False
    """These extents reach the high watermark or come from the index: other readers will want them too."""
