-- Locks, idempotence and cost: functions/move_log_starts.sql.
SELECT log_start_offset, high_watermark, extents, bytes, has_more
  FROM move_log_starts(%(job_id)s::bigint, %(epoch)s::bigint, %(keys)s::bigint[], %(offsets)s::bigint[], %(limit)s::int)
