-- Locks, idempotence and cost: functions/prune_jobs.sql.
SELECT prune_jobs(%(limit)s::int)
