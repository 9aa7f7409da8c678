-- Jobs for people: the unfinished by id, then the newest of the finished.
-- Locks: none. Idempotent: reads only. Cost: the unfinished jobs and as many finished ones as asked for.
WITH listed AS (
    (SELECT 0 AS part, * FROM jobs WHERE state IN (job_waiting(), job_leased()) ORDER BY job_id LIMIT %(limit)s::int)
    UNION ALL
    (SELECT 1, * FROM jobs WHERE state IN (job_done(), job_given_up()) ORDER BY ended_at DESC LIMIT %(limit)s::int))
SELECT job_id, kind, key, state, priority, period_ms, to_ms(due_at), epoch, worker, attempts, progress, last_error,
       to_ms(created_at), to_ms(leased_at), to_ms(ended_at)
  FROM listed
 ORDER BY part, CASE WHEN part = 0 THEN job_id END, ended_at DESC, job_id DESC
 LIMIT %(limit)s::int
