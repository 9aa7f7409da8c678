-- Locks, idempotence and cost: functions/read_pins.sql.
SELECT pin_reads(%(pin_id)s::uuid, %(holder)s::text, %(lease_ms)s::bigint * interval '1 ms')
