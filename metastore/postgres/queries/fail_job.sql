-- Locks, idempotence and cost: functions/end_job.sql.
SELECT fail_job(
    %(job_id)s::bigint, %(epoch)s::bigint, %(error)s::text, %(retry_after_ms)s::bigint * interval '1 ms')
