-- Locks, idempotence and cost: functions/janitor_state.sql.
SELECT begin_generation(%(job_id)s::bigint, %(epoch)s::bigint, %(incarnation_id)s::uuid)
