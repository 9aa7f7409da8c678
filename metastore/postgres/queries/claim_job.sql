-- Locks, idempotence and cost: functions/claim_job.sql.
SELECT job_id, epoch, kind, key, payload, attempts, progress
  FROM claim_job(%(worker)s::text, %(kinds)s::text[], %(lease_ms)s::bigint * interval '1 ms')
