-- What this server promises about committed rows, as this session gets it, and how many connections it has left.
-- Locks: none. Idempotent: reads only. Cost: counters in memory. pg_stat_database is readable by every role;
-- reserved_connections exists from Postgres 16 on.
SELECT current_setting('fsync') = 'on',
       current_setting('full_page_writes') = 'on',
       current_setting('synchronous_commit'),
       current_setting('max_connections')::int,
       current_setting('superuser_reserved_connections')::int
         + coalesce(current_setting('reserved_connections', true), '0')::int,
       (SELECT sum(numbackends)::int FROM pg_stat_database)
