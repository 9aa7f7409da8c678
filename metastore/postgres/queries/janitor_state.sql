-- Locks, idempotence and cost: functions/janitor_state.sql.
SELECT incarnation_id, generation FROM janitor_state()
