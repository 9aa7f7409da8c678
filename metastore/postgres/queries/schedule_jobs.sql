-- Locks, idempotence and cost: functions/enqueue_jobs.sql.
SELECT schedule_jobs(
    %(controller_epoch)s::bigint, %(kinds)s::text[], %(keys)s::text[], %(payloads)s::bytea[],
    %(priorities)s::smallint[], %(periods)s::bigint[])
