"""Removes files that no snapshot of their table has.

Place: after commits that did not happen (committing.py, upkeep/rewriting.py), expiry.py, orphans.py. Blocks.
Invariant: no error ends what the caller does: a file that cannot be deleted stays, and orphans.py finds it later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pyiceberg.io import FileIO

logger = logging.getLogger(__name__)


def remove_files(storage: FileIO, locations: Iterable[str], what: str) -> int:
    """Return how many files were deleted; those that are gone already do not count. `what`: for the log."""
    count = 0
    for location in locations:
        try:
            storage.delete(location)
            count += 1
        except FileNotFoundError:
            continue  # pyiceberg removes manifests of a failed commit itself
        except Exception as error:
            logger.warning("%s was not removed: file=%s error=%s", what, location, error)
    return count
