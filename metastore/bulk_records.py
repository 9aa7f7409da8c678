"""The bucket's record of decided bulk writes: the files of their attempts, so that a rebuild shows no others.

Place: written by Spark's driver before the first chunk (scan/bulk/commit.py), and by a job for what a killed driver
left (compactor/outcomes.py); read by a rebuild (compactor/rebuild.py).
Invariant: once the object RECORDED is there, each file of an attempt that was decided is in the metastore or in an
object, as long as the index has it. Files of attempts that were never decided are in none.
Layout: objects of recorded_objects.py; an entry is a file id.
"""

from __future__ import annotations

from headrace.storage.errors import NotFoundError
from headrace.storage.objects.store import ObjectStore

PREFIX = "metastore/bulk-writes/"
RECORDED = "metastore/bulk-writes-are-recorded"
"""An object that is there once all decided attempts were recorded: a bucket of an older version has none."""
FILES_PER_OBJECT = 20_000


async def are_recorded(store: ObjectStore) -> bool:
    """Return whether the bucket knows the decided attempts."""
    try:
        await store.get(RECORDED)
    except NotFoundError:
        return False
    return True
