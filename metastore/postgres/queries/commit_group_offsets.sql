-- Locks, idempotence and cost: functions/commit_group_offsets.sql.
SELECT commit_group_offsets(
    %(group_id)s::text, %(coordinator_epoch)s::bigint,
    %(keys)s::bigint[], %(offsets)s::bigint[], %(leader_epochs)s::int[], %(metadata)s::bytea[])
