-- The state of the server that decides whether the metastore is safe and stays fast, as this session sees it.
-- Locks: none. Idempotent: reads only. Cost: views in memory, and the catalog. Without pg_monitor the rows of other
-- roles' sessions have no transaction times, and those of standbys no state: that is counted, too. The names of
-- synchronous standbys are empty if this session's commits wait for none.
SELECT current_setting('server_version'),
       clock_timestamp(),
       current_setting('fsync') = 'on',
       current_setting('full_page_writes') = 'on',
       current_setting('synchronous_commit'),
       current_setting('max_connections')::int,
       current_setting('superuser_reserved_connections')::int
         + coalesce(current_setting('reserved_connections', true), '0')::int,
       (SELECT sum(numbackends)::int FROM pg_stat_database),
       (SELECT count(*)::int FROM pg_stat_replication),
       (SELECT count(*)::int FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
       (SELECT count(*)::int FROM pg_stat_replication WHERE sync_state IS NULL),
       CASE WHEN current_setting('synchronous_commit') NOT IN ('off', 'local')
            THEN current_setting('synchronous_standby_names') ELSE '' END,
       (SELECT coalesce(extract(epoch FROM max(clock_timestamp() - xact_start)), 0)::float8
          FROM pg_stat_activity
         WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND wait_event IS DISTINCT FROM 'SyncRep'),
       (SELECT count(*)::int FROM pg_prepared_xacts),
       (SELECT coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0)::bigint
          FROM pg_replication_slots WHERE NOT active),
       (SELECT max(age(datfrozenxid))::bigint FROM pg_database),
       current_setting('autovacuum') = 'on',
       pg_database_size(current_database())
