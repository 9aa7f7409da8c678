-- Locks, idempotence and cost: functions/rebuild_files.sql.
SELECT rebuild_files(%(ids)s::uuid[], %(births)s::bigint[], %(sizes)s::bigint[], %(files)s::int[], %(keys)s::bigint[],
                     %(positions)s::bigint[], %(lengths)s::bigint[], %(records)s::bigint[], %(times)s::bigint[])
