-- Locks, idempotence and cost: functions/read_pins.sql.
SELECT renew_pin(%(pin_id)s::uuid, %(lease_ms)s::bigint * interval '1 ms')
