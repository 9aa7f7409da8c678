-- The metastore's clock: milliseconds since the epoch. Read it after the lock, never before: a
-- statement that waited must not judge by the time at which it began to wait.
-- Locks: none. Idempotent: reads only. Cost: none worth naming. Tests replace it to move time.
CREATE OR REPLACE FUNCTION wall_ms() RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- A time as milliseconds since the epoch. Locks: none. Idempotent: pure. Cost: none worth naming.
CREATE OR REPLACE FUNCTION to_ms(p_time timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN floor(extract(epoch FROM p_time) * 1000)::bigint;
