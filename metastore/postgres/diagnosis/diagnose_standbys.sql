-- How far each connected standby is behind: its name, bytes of WAL that it has not flushed, bytes that it has not
-- replayed, and by how many seconds it replayed late. NULL without pg_monitor, and the seconds also where nothing is written.
-- Locks: none. Idempotent: reads only. Cost: a row for each standby, in memory.
SELECT coalesce(application_name, ''), pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn)::bigint,
       pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::bigint, extract(epoch FROM replay_lag)::float8
  FROM pg_stat_replication
 ORDER BY 1
