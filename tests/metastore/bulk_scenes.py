"""Files of bulk writes, and what the metastore's tables say about them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence

from headrace.metastore.api.commit import BulkFile, BulkRun
from headrace.storage.file_id import new_bulk_file_id
from tests.metastore.sessions import Session, rows

RUN_BYTES = 100


def bulk_file(
    now_ms: int, rng: random.Random, keys: Sequence[int], *, records: int = 3, term_hours: int = 2, age_ms: int = 0
) -> BulkFile:
    """A file with one run per key."""
    runs = tuple(
        BulkRun(key, place * RUN_BYTES, RUN_BYTES, records, 1_000 + place) for place, key in enumerate(sorted(keys))
    )
    return BulkFile(new_bulk_file_id(now_ms - age_ms, term_hours, rng), len(runs) * RUN_BYTES + 50, runs)


async def readable(connection: Session) -> dict[uuid.UUID, list[tuple[int, int]]]:
    """(partition key, records) of each file that extents name; no offset is twice, none is missing."""
    wrong = await rows(
        connection,
        "SELECT * FROM (SELECT partition_key, base_offset, coalesce(lag(last_offset) OVER w + 1, 0) AS due FROM extents"
        " WINDOW w AS (PARTITION BY partition_key ORDER BY last_offset)) AS e WHERE base_offset <> due",
    )
    assert not wrong, wrong
    wrong = await rows(
        connection,
        "SELECT partition_key, high_watermark FROM partition_heads h WHERE high_watermark <> (SELECT"
        " coalesce(max(last_offset) + 1, 0) FROM extents e WHERE e.partition_key = h.partition_key)",
    )
    assert not wrong, wrong
    found: dict[uuid.UUID, list[tuple[int, int]]] = {}
    for file_id, key, base, last in await rows(
        connection, "SELECT file_id, partition_key, base_offset, last_offset FROM extents ORDER BY 1, position"
    ):
        found.setdefault(file_id, []).append((key, last - base + 1))
    return found


async def staged_ids(connection: Session) -> set[uuid.UUID]:
    """Claimed by a decided write, and not committed."""
    return {row[0] for row in await rows(connection, "SELECT file_id FROM segment_files WHERE state = 3")}
