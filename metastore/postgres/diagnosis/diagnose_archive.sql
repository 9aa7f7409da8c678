-- Whether WAL is archived, the age in seconds of the newest segment that was, and whether the last attempt failed.
-- Locks: none. Idempotent: reads only. Cost: a view in memory.
SELECT current_setting('archive_mode') <> 'off',
       extract(epoch FROM clock_timestamp() - last_archived_time)::float8,
       coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), false)
  FROM pg_stat_archiver
