"""How long records have waited for their table: for `headrace tables list`, the doctor and the console.

Place: next to worker.py, which decides nothing by it.
Invariant: reads only. The answer is a lower bound, and small for a table that gets commits although it is behind: it
counts from the table's newest commit, or from the newest timestamp of the extent with the first record that the table
lacks, whichever is later. So records with old timestamps do not make a table late before its next round. A timestamp
that is later than the extent's file counts as the file's time, which its id has: timestamps of the future hide
no wait.
"""

from __future__ import annotations

from headrace.metastore.api.read import Extent, ExtentQuery, IndexApi
from headrace.storage.file_id import born_ms
from headrace.tables.looking import Condition, TableLook


async def waited_ms(metastore: IndexApi, look: TableLook, now_ms: int) -> int | None:
    """Return for how long, at least; 0: the table has everything, None: it is paused or stopped.

    `now_ms`: since the epoch.
    """
    if look.condition is not Condition.FOLLOWING:
        return None
    if look.progress is None or look.letters.due:
        return max(0, now_ms - _committed_ms(look))
    wanted = {} if look.step is None else look.step.wanted
    queries = [ExtentQuery(look.partitions[p].key, offsets.start, 1) for p, offsets in wanted.items()]
    if not queries:
        return 0
    answers = await metastore.find_extents(queries)
    oldest = min((_known_ms(each.extents[0]) for each in answers if each.extents), default=now_ms)
    return max(0, now_ms - max(_committed_ms(look), oldest))


def _known_ms(extent: Extent) -> int:
    """The newest time in an extent, at most that of its file."""
    times = [extent.newest_ms, None if extent.file_id is None else born_ms(extent.file_id)]
    return min(each for each in times if each is not None)


def _committed_ms(look: TableLook) -> int:
    """The time of the newest commit with offsets, as far as the table still knows; of a new table, its creation."""
    metadata = look.table.metadata
    own = None if look.progress is None else metadata.snapshot_by_id(look.progress.snapshot_id)
    snapshot = own or metadata.current_snapshot()
    return metadata.last_updated_ms if snapshot is None else snapshot.timestamp_ms
