-- Locks, idempotence and cost: functions/drop_files.sql.
SELECT drop_files(%(job_id)s::bigint, %(epoch)s::bigint, %(ids)s::uuid[])
