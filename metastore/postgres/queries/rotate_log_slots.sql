-- Locks, idempotence and cost: functions/rotate_log_slots.sql.
SELECT rotate_log_slots();
