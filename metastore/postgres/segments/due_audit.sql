-- Objects that are due for the cluster's file.delete.delay.ms; none while it has no value.
-- Locks: none. Idempotent: reads only. Cost: the rows of the answer, by archived_audit_due.
SELECT metadata_partition, first_offset, last_offset, records, newest_ms, bytes, index_bytes, epoch, true
  FROM archived_audit
 WHERE due_at <= wall_time() - cluster_interval('file.delete.delay.ms')
 ORDER BY due_at LIMIT %(row_limit)s::int
