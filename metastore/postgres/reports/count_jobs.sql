-- How many jobs there are by kind and state, and how long the longest of them has been due, for metrics and people.
-- Locks: none. Idempotent: reads only. Cost: one row per job; finished ones stay for a day.
SELECT kind, state, count(*),
       CASE WHEN state IN (job_waiting(), job_leased()) THEN greatest(to_ms(wall_time()) - to_ms(min(due_at)), 0) ELSE 0 END
  FROM jobs GROUP BY kind, state ORDER BY kind, state
