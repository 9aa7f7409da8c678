-- Some files that a bucket must have if it is the metastore's: of the oldest and of the newest ones with live records.
-- What an adopted bucket lacks of earlier files was accepted: an id begins with the milliseconds of its creation.
-- Locks: none. Idempotent: reads only. Cost: a few rows from both ends of the primary key, and the dead ones among them.
WITH first AS (
    SELECT coalesce(lpad(to_hex(floor(extract(epoch FROM bucket_adopted_at) * 1000)::bigint), 12, '0'), repeat('0', 12)) AS ms
      FROM cluster
), named AS NOT MATERIALIZED (
    SELECT f.file_id FROM segment_files f
     WHERE f.state = file_live() AND f.dead_at IS NULL
       AND f.file_id >= (SELECT (ms || repeat('0', 20))::uuid FROM first)
)
(SELECT file_id FROM named ORDER BY file_id LIMIT %(oldest)s)
UNION
(SELECT file_id FROM named ORDER BY file_id DESC LIMIT %(newest)s)
