"""Where the last live byte of a file is that the feed mentioned.

Place: in the tail index (index.py); how far a file is read ahead depends on it.
Invariant: bounded; the file that was mentioned first goes first.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict

from headrace.metastore.api.read import Extent

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
