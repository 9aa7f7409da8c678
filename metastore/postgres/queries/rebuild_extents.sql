-- Locks, idempotence and cost: functions/rebuild_extents.sql.
SELECT rebuild_extents(%(keys)s::bigint[], %(bases)s::bigint[], %(lasts)s::bigint[], %(files)s::uuid[],
                       %(positions)s::bigint[], %(lengths)s::bigint[], %(times)s::bigint[])
