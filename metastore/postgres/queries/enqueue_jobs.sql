-- Locks, idempotence and cost: functions/enqueue_jobs.sql.
SELECT enqueue_jobs(
    %(by_job)s::bigint, %(by_epoch)s::bigint, %(kinds)s::text[], %(keys)s::text[], %(payloads)s::bytea[],
    %(priorities)s::smallint[],
    array(SELECT delay * interval '1 ms' FROM unnest(%(delays_ms)s::bigint[]) WITH ORDINALITY AS d (delay, n) ORDER BY n),
    %(max_attempts)s::int[])
