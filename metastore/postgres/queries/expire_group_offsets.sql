-- Locks, idempotence and cost: functions/expire_group_offsets.sql.
SELECT expire_group_offsets(make_interval(secs => %(retention_ms)s::bigint / 1000.0), %(limit)s::int)
