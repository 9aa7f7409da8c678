-- For how many turns each log's next slot is overdue: 0 or 1 while slots are emptied in time.
-- Locks: none. Idempotent: reads only. Cost: two rows.
SELECT name, greatest(log_tick(name) + 2 - cleared_tick, 0) FROM log_slots ORDER BY name
