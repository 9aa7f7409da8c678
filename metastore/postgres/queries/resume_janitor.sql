-- Locks, idempotence and cost: functions/janitor_state.sql.
SELECT resume_janitor(%(seen)s::bigint)
