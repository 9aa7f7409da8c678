"""A byte range of a segment file, as the read path asks for it, and the bytes that it gets.

Place: what deliver.py and seek.py ask read.py for, and what the caches and the zone's agents are asked for.
Invariant: a range is not empty; its bytes are exactly those asked for.
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
    """Where live bytes of the file are known to end (0: not known): a reader that goes on will want these too."""
    recent: bool = True
    """Near the high watermark: worth caching."""


class RangeBytes(NamedTuple):
    """Bytes of a segment file. `checked`: they never left this process since their CRCs were checked."""

    data: memoryview
    checked: bool
