-- How many jobs there are by kind and state, for metrics and people.
-- Locks: none. Idempotent: reads only. Cost: one row per job; finished ones stay for a day.
SELECT kind, state, count(*) FROM jobs GROUP BY kind, state ORDER BY kind, state
