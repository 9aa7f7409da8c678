-- Locks, idempotence and cost: functions/end_job.sql.
SELECT finish_job(%(job_id)s::bigint, %(epoch)s::bigint)
