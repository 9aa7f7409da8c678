-- Forget files after their objects were deleted. A condemned id stays until no commit of it could be
-- accepted any more; until then it is given by take_dead_files again, and its object deleted once more.
-- Locks: the job's row, shared; the files' rows, ascending. Idempotent: what is gone is gone. Cost: O(files).
CREATE OR REPLACE FUNCTION drop_files(p_job_id bigint, p_epoch bigint, p_ids uuid[]) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_settled timestamptz;
    v_dropped int;
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM FROM segment_files WHERE file_id = ANY (p_ids) ORDER BY file_id FOR UPDATE;
    v_settled := wall_time() - settled_age();
    DELETE FROM segment_files
     WHERE file_id = ANY (p_ids) AND state IN (file_condemned(), file_deleting()) AND committed_at < v_settled;
    GET DIAGNOSTICS v_dropped = ROW_COUNT;
    RETURN v_dropped;
END $$;
