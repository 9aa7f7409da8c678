-- The ends of both lifecycle logs, per metadata partition.
-- Locks: none. Idempotent: reads only. Cost: the table's 50 rows.
SELECT next_offset, audit_start, next_audit_offset FROM remote_log_heads ORDER BY metadata_partition
