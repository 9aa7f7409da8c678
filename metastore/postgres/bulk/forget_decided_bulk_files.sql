-- The bucket has the record of these files.
-- Locks: the job's row, shared. Idempotent: yes. Cost: one index probe per row.
CREATE OR REPLACE FUNCTION forget_decided_bulk_files(p_job_id bigint, p_epoch bigint, p_file_ids uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    DELETE FROM decided_bulk_files WHERE file_id = ANY (p_file_ids);
END $$;
