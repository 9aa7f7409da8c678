-- Locks, idempotence and cost: functions/condemn_files.sql.
SELECT condemn_files(%(job_id)s::bigint, %(epoch)s::bigint, %(incarnation_id)s::uuid, %(ids)s::uuid[],
                     %(births)s::bigint[], %(min_age_ms)s::bigint * interval '1 ms')
