-- What compaction must know of a file beyond its lifecycle (0003_jobs.sql).

ALTER TABLE segment_files
    ADD COLUMN body_bytes    bigint NOT NULL DEFAULT 0,  -- of all batches in it: what of them is not live is dead
    ADD COLUMN unreadable_at timestamptz;                -- a merge left extents in it that it could not read
UPDATE segment_files SET body_bytes = live_bytes;        -- what died before nobody counted

-- Live files by level, oldest first. Neither live_bytes nor body_bytes is in it: losing bytes stays a HOT update.
CREATE INDEX segment_files_waiting ON segment_files (level, file_id) WHERE state = 0 AND dead_at IS NULL;
