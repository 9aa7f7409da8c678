-- Locks, idempotence and cost: functions/allocate_producer_ids.sql.
SELECT allocate_producer_ids(%(count)s::int);
