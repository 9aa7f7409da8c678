-- How many files there are in each state, for a progress bar.
-- Locks: none. Idempotent: reads only. Cost: a scan of segment_files.
SELECT count(*) FILTER (WHERE state = file_live() AND dead_at IS NULL), count(*), wall_ms() FROM segment_files
