-- Forget files after their objects were deleted. A condemned id stays until no commit of it could be
-- accepted any more; until then it is given by take_dead_files again, and its object deleted once more.
-- The keys of remote segments that waited for an object get DELETE_FINISHED in the same transaction.
-- Locks: the job's row, shared; the files' rows, ascending; the segments' rows and the heads of their logs. Idempotent: what is gone is gone. Cost: O(files).
CREATE OR REPLACE FUNCTION drop_files(p_job_id bigint, p_epoch bigint, p_ids uuid[]) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_settled timestamptz;
    v_dropped uuid[];
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM FROM segment_files WHERE file_id = ANY (p_ids) ORDER BY file_id FOR UPDATE;
    v_settled := wall_time() - settled_age();
    WITH dropped AS (
        DELETE FROM segment_files
         WHERE file_id = ANY (p_ids) AND state IN (file_condemned(), file_deleting()) AND committed_at < v_settled
        RETURNING file_id
    )
    SELECT array_agg(file_id) INTO v_dropped FROM dropped;
    DELETE FROM damaged_extents WHERE file_id = ANY (v_dropped);
    PERFORM forget_objects(v_dropped);
    RETURN coalesce(cardinality(v_dropped), 0);
END $$;
