"""Files that the store refused to delete: when each is tried again.

Place: asked by the janitor. Pure: it takes no time, it only counts.
Invariant: a file's delay doubles with each refusal from DELAY_MIN_MS to DELAY_MAX_MS and is forgotten when the file
is deleted. The counts are this process's; the metastore keeps the time at which a file may be tried again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

DELAY_MIN_MS = 60_000
DELAY_MAX_MS = 86_400_000
FILES_MAX = 10_000
"""Beyond it a refused file starts with the longest delay, so that the counts stay small."""


class RefusedFiles:
    """Refusals in a row by file id."""

    def __init__(self) -> None:
        self._refusals: dict[uuid.UUID, int] = {}

    def __len__(self) -> int:
        return len(self._refusals)

    def refused(self, file_ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, int]:
        """File id -> for how many milliseconds it is set aside."""
        return {file_id: self._delay_ms(file_id) for file_id in file_ids}

    def deleted(self, file_ids: Iterable[uuid.UUID]) -> None:
        """The store confirmed these."""
        for file_id in file_ids:
            self._refusals.pop(file_id, None)

    def _delay_ms(self, file_id: uuid.UUID) -> int:
        if file_id not in self._refusals and len(self._refusals) >= FILES_MAX:
            return DELAY_MAX_MS
        count = self._refusals[file_id] = self._refusals.get(file_id, 0) + 1
        return min(DELAY_MIN_MS << min(count - 1, 20), DELAY_MAX_MS)
