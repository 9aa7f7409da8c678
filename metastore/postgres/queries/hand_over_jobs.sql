-- Locks, idempotence and cost: functions/hand_over_jobs.sql.
SELECT hand_over_jobs(
    %(by_job)s::bigint, %(by_epoch)s::bigint, %(kind)s::text, %(to_kind)s::text,
    %(after_ms)s::bigint * interval '1 ms', %(attempts)s::int)
