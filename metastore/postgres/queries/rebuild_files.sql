-- Locks, idempotence and cost: functions/rebuild_files.sql.
SELECT rebuild_files(%(ids)s::uuid[], %(births)s::bigint[], %(levels)s::int[], %(sizes)s::bigint[],
                     %(body_bytes)s::bigint[], %(live_bytes)s::bigint[])
