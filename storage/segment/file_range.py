"""A byte range of a segment file, and its bytes.

Place: deliver.py and seek.py read ranges with read.py; the caches and the zone's agents also exchange ranges.
Invariant: a range is not empty; its bytes are exactly the requested ones.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple


class FileRange(NamedTuple):
    """The bytes from `start` to `end` of a file."""

    file_id: uuid.UUID
    start: int
    end: int
    live_end: int = 0
    """The known end of the file's live bytes (0: unknown): a reader that continues needs these bytes too."""
    recent: bool = True
    """Near the high watermark: worth caching."""
    run_end: int = 0
    """The end of a long run of one partition's bytes around the range, which is loaded without its neighbours, and may
    be read ahead as far as here; 0: what is around it belongs to other partitions, and their readers need it, too."""


class RangeBytes(NamedTuple):
    """Bytes of a segment file. `checked`: they have not left this process since their CRCs were verified."""

    data: memoryview
    checked: bool
