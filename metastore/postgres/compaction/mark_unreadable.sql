-- Remember that a merge of the release before could not read all of these files. This release marks the extents instead
-- (mark_damaged.sql), and leaves such a file out only for ten minutes.
-- Locks: the job's row, shared; the files' rows, ascending. Idempotent: yes. Cost: one update per file.
CREATE OR REPLACE FUNCTION mark_unreadable(p_job_id bigint, p_epoch bigint, p_file_ids uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM FROM segment_files WHERE file_id = ANY (p_file_ids) ORDER BY file_id FOR NO KEY UPDATE;
    UPDATE segment_files SET unreadable_at = wall_time() WHERE file_id = ANY (p_file_ids);
END $$;
