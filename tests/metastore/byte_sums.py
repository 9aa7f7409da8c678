"""What must always hold: extents are in live files, live bytes of files, when a file is dead, sizes of partitions,
and what was removed.

After any test of a database, `unaccounted` must find nothing.
"""

from __future__ import annotations

from typing import Any

from tests.metastore.sessions import Session, rows

FILES = """
SELECT f.file_id, f.live_bytes, coalesce(e.bytes, 0)::bigint, f.dead_at IS NOT NULL
  FROM segment_files f
  LEFT JOIN (SELECT file_id, sum(length) AS bytes FROM extents GROUP BY file_id) AS e USING (file_id)
 WHERE f.state = 0 AND (f.live_bytes <> coalesce(e.bytes, 0) OR (f.live_bytes = 0) <> (f.dead_at IS NOT NULL))
"""
PARTITIONS = """
SELECT p.partition_key, h.appended_bytes - p.removed_bytes, coalesce(e.bytes, 0)::bigint
  FROM partitions p
  JOIN partition_heads h USING (partition_key)
  LEFT JOIN (SELECT partition_key, sum(length) AS bytes FROM extents GROUP BY partition_key) AS e USING (partition_key)
 WHERE h.appended_bytes - p.removed_bytes <> coalesce(e.bytes, 0)
"""

REMOVED = """
SELECT p.partition_key, p.extents_from, p.log_start_offset
  FROM partitions p
 WHERE p.extents_from > p.log_start_offset
    OR EXISTS (SELECT FROM extents e WHERE e.partition_key = p.partition_key AND e.last_offset < p.extents_from)
    OR EXISTS (SELECT FROM time_blocks b WHERE b.partition_key = p.partition_key AND b.last_offset < p.extents_from
                  AND NOT EXISTS (SELECT FROM removed_extents r WHERE r.partition_key = p.partition_key))
    OR EXISTS (SELECT FROM removed_extents r
                WHERE r.partition_key = p.partition_key AND r.last_offset >= p.extents_from)
"""

NAMED = """
SELECT e.partition_key, e.last_offset, e.file_id, f.state
  FROM extents e LEFT JOIN segment_files f USING (file_id)
 WHERE f.state IS DISTINCT FROM 0 AND get_byte(uuid_send(e.file_id), 6) >= 16
"""


async def unaccounted(connection: Session) -> list[tuple[Any, ...]]:
    """Files and partitions with wrong sums, partitions with rows below where all were removed, extents without
    a live file."""
    return [row for query in (FILES, PARTITIONS, REMOVED, NAMED) for row in await rows(connection, query)]
