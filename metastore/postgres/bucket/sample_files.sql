-- Some files that a bucket must have if it is the metastore's: of the oldest and of the newest ones with live records.
-- Locks: none. Idempotent: reads only. Cost: a few rows from both ends of the primary key, and the dead ones among them.
(SELECT file_id FROM segment_files WHERE state = file_live() AND dead_at IS NULL ORDER BY file_id LIMIT %(oldest)s)
UNION
(SELECT file_id FROM segment_files WHERE state = file_live() AND dead_at IS NULL ORDER BY file_id DESC LIMIT %(newest)s)
