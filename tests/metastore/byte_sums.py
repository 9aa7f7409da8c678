"""What must always add up: live bytes of files, sizes of partitions, and when a file is dead.

Whatever a test did to a database, `unaccounted` must find nothing in the end.
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


async def unaccounted(connection: Session) -> list[tuple[Any, ...]]:
    """Files and partitions whose sums are wrong."""
    return [*await rows(connection, FILES), *await rows(connection, PARTITIONS)]
