-- Locks, idempotence and cost: functions/take_dead_files.sql.
SELECT file_id, size, condemned
  FROM take_dead_files(%(job_id)s::bigint, %(epoch)s::bigint, %(incarnation_id)s::uuid,
                       %(delay_ms)s::bigint * interval '1 ms', %(limit)s::int)
