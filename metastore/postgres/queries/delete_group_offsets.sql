-- Locks, idempotence and cost: functions/delete_group_offsets.sql.
SELECT delete_group_offsets(%(group_id)s::text, %(coordinator_epoch)s::bigint, %(keys)s::bigint[])
