"""Decide which files of bulk writes a rebuild shows: those of decided attempts, as the bucket says.

Place: between the scan and the placement of a rebuild (rebuild.py).
Invariant: Spark stores files of attempts that fail, too. Batches of a file that no decided attempt has are left out.
A bucket of a version that recorded no decisions shows all of them, as counted: nothing says which ones are.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Sequence
from typing import NamedTuple

from headrace.compactor.rebuild_place import ScannedBatch
from headrace.compactor.rebuild_scan import Scan
from headrace.metastore.bulk_records import PREFIX, are_recorded
from headrace.metastore.recorded_objects import list_recorded, read_entries
from headrace.storage.file_id import term_ms
from headrace.storage.objects.store import ObjectStore


class BulkFiles(NamedTuple):
    """Indexes of files in the scan. `unsure`: shown, but it is not known whether their attempt was decided."""

    undecided: Container[int]
    unsure: Container[int]


async def bulk_files(store: ObjectStore, found: Scan) -> BulkFiles:
    """Return what the bucket says. CorruptError if an object is damaged."""
    of_writes = {number: file.file_id for number, file in enumerate(found.files) if term_ms(file.file_id)}
    if not of_writes:
        return BulkFiles((), ())
    if not await are_recorded(store):
        return BulkFiles((), of_writes.keys())
    decided: set[uuid.UUID] = set()
    for one in await list_recorded(store, PREFIX):
        decided.update(await read_entries(store, one.key, uuid.UUID))
    return BulkFiles({number for number, file_id in of_writes.items() if file_id not in decided}, ())


def records_in(batches: Sequence[ScannedBatch], files: Container[int]) -> int:
    """Return how many records of these files are among the batches."""
    return sum(batch.records for batch in batches if batch.file in files)
