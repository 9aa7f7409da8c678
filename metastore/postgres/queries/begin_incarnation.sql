-- Locks, idempotence and cost: functions/janitor_state.sql.
SELECT begin_incarnation()
