-- Locks, idempotence and cost: functions/delete_group.sql.
SELECT delete_group(%(group_id)s::text, %(coordinator_epoch)s::bigint)
