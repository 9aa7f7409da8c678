-- Who reads planned files for long holds a job's lease, and that is its read pin (functions/read_horizon.sql).
DROP FUNCTION IF EXISTS pin_reads(uuid, text, interval);
DROP FUNCTION IF EXISTS renew_pin(uuid, interval);
DROP FUNCTION IF EXISTS pin_horizon();
DROP TABLE read_pins;
