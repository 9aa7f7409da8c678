-- Locks, idempotence and cost: functions/end_job.sql.
SELECT heartbeat_job(
    %(job_id)s::bigint, %(epoch)s::bigint, %(lease_ms)s::bigint * interval '1 ms', %(progress)s::text)
