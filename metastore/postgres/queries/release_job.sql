-- Locks, idempotence and cost: functions/end_job.sql.
SELECT release_job(%(job_id)s::bigint, %(epoch)s::bigint)
