-- Locks, idempotence and cost: functions/snapshots.sql.
SELECT truncate_metadata(%(controller_epoch)s::bigint, %(record_count)s::bigint)
