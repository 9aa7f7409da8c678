-- Locks, idempotence and cost: functions/snapshots.sql.
SELECT save_snapshot(%(controller_epoch)s::bigint, %(end_offset)s::bigint, %(data)s::bytea)
