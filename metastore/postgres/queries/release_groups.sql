-- Locks, idempotence and cost: functions/release_groups.sql.
SELECT release_groups(%(group_ids)s::text[], %(coordinator_epochs)s::bigint[])
