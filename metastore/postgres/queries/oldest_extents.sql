-- Locks, idempotence and cost: functions/oldest_extents.sql.
SELECT now_ms, log_start_offset, high_watermark, size, has_leftovers, last_offsets, lengths, newest
  FROM oldest_extents(%(keys)s::bigint[], %(limits)s::int[])
