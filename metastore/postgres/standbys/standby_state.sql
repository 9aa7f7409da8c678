-- What commits of this role wait for: the names of synchronous standbys, the standbys that are connected, and how many
-- sessions have waited in their commit for so long: their number, and the age of the oldest one's statement in seconds.
-- A role sees the waits of its sessions, and the names of all standbys; without pg_monitor not which is synchronous.
-- Locks: none. Idempotent: reads only. Cost: one row per session and standby, in memory.
SELECT current_setting('synchronous_standby_names'),
       array(SELECT application_name FROM pg_stat_replication ORDER BY 1),
       count(*)::int, coalesce(max(extract(epoch FROM clock_timestamp() - query_start)), 0)::float8
  FROM pg_stat_activity
 WHERE datname = current_database() AND usename = current_user AND wait_event = 'SyncRep'
   AND clock_timestamp() - query_start >= %(waited_ms)s::bigint * interval '1 ms'
