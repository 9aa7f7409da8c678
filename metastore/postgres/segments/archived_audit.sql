-- The objects of a metadata partition's audit trail.
-- Locks: none. Idempotent: reads only. Cost: the rows of the answer, by the primary key.
SELECT metadata_partition, first_offset, last_offset, records, newest_ms, bytes, index_bytes, epoch, due_at IS NOT NULL
  FROM archived_audit
 WHERE metadata_partition = %(metadata_partition)s::smallint
 ORDER BY last_offset
