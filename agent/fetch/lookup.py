"""The result of one extent query: what is known about one partition of a fetch.

Place: made by index.py from the commit feed, or by locate.py from the metastore's answer; read by handler.py and
deliver.py.
Invariant: extents are in offset order, without a gap; the first contains the requested offset.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from headrace.metastore.api.read import Extent


class LookupStatus(enum.Enum):
    """The result of a partition's look-up."""

    FOUND = enum.auto()
    OUT_OF_RANGE = enum.auto()
    GONE = enum.auto()
    """Deleted: the partition does not exist any more."""
    UNAVAILABLE = enum.auto()
    """The metastore was needed and did not answer."""


class Lookup(NamedTuple):
    """Answer to one ExtentQuery. Offsets are -1 if unknown."""

    status: LookupStatus
    log_start_offset: int = -1
    high_watermark: int = -1
    extents: Sequence[Extent] = ()
    """From the extent with the offset on, in order; empty at the high watermark."""
    recent: bool = False
    """These extents reach the high watermark or come from the index: other readers will need them too."""
    cut: bool = False
    """The budget of the look-up ended here: there is more to read now, and the next fetch finds it."""
