-- Locks, idempotence and cost: functions/audit_files.sql.
SELECT file_id, state, level, size, live_bytes, committed_ms, dead_ms, extents
  FROM audit_files(%(after)s::uuid, %(limit)s::int)
