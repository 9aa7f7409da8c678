-- Tables of this schema that another session has locked against all others: table, process id, application. Left out are
-- sessions that end by themselves, as autovacuum, or with their wait for a standby.
-- Locks: none. Idempotent: reads only. Cost: the server's lock table.
SELECT c.relname::text, l.pid, coalesce(a.application_name, '')
  FROM pg_locks l
  JOIN pg_class c ON c.oid = l.relation
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid() AND c.relkind IN ('r', 'p')
   AND a.backend_type IS DISTINCT FROM 'autovacuum worker' AND a.wait_event IS DISTINCT FROM 'SyncRep'
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND c.relnamespace = current_schema()::regnamespace
 ORDER BY 1
 LIMIT 20
