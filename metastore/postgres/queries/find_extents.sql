-- Locks, idempotence and cost: functions/find_extents.sql.
SELECT log_start_offset, high_watermark, extents
  FROM find_extents(%(keys)s::bigint[], %(offsets)s::bigint[], %(max_bytes)s::bigint[]);
