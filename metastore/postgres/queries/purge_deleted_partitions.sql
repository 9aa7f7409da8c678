-- Locks, idempotence and cost: functions/purge_deleted_partitions.sql.
SELECT purge_deleted_partitions(%(limit)s::int);
