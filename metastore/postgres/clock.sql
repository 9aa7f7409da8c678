-- The metastore's clock: milliseconds since the epoch. Read it after the lock, never before: a
-- statement that waited must not judge by the time at which it began to wait.
-- Locks: none. Idempotent: reads only. Cost: none worth naming. Tests replace it to move time.
CREATE OR REPLACE FUNCTION wall_ms() RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- The time of a record, which can be any int64. A timestamptz ends earlier: what is beyond year 1 or year 9999, where the
-- times of most languages end, is the closest time. Such a time is only compared, never shown.
-- Locks: none. Idempotent: pure. Cost: none worth naming.
CREATE OR REPLACE FUNCTION record_time(p_ms bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT to_timestamp(ms / 1000) + ms % 1000 * interval '1 millisecond'
          FROM least(greatest(p_ms, -62135596800000), 253402300799999) AS ms);

-- A time as milliseconds since the epoch. Locks: none. Idempotent: pure. Cost: none worth naming.
CREATE OR REPLACE FUNCTION to_ms(p_time timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN floor(extract(epoch FROM p_time) * 1000)::bigint;
