-- A pass over a partition is complete: from now on it is cleaned up to p_end. Only if the live extents below p_end are
-- exactly those that the pass left (p_last, p_file), except below the log start: one that another writer put there, or
-- one that should have been swapped out, may hold an earlier record of a key. Then false, and nothing happened.
-- An extent that crosses p_end, as merges made once, is not of the pass: it is cleaned up to there.
-- p_horizon_ms: the first delete horizon that is left, or NULL.
-- The pass has read all of these extents: none is damaged any more.
-- Locks: the job's row, shared; the partition's row; those of its damaged extents. Idempotent: yes. Cost: one row per
-- extent below p_end.
CREATE OR REPLACE FUNCTION finish_cleaning(
    p_job_id bigint, p_epoch bigint, p_key bigint, p_end bigint, p_last bigint[], p_file uuid[], p_horizon_ms bigint
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_log_start bigint;
    v_end       bigint;
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    SELECT log_start_offset INTO v_log_start FROM partitions WHERE partition_key = p_key FOR NO KEY UPDATE;
    IF NOT FOUND OR EXISTS (
        SELECT FROM (SELECT last_offset, file_id FROM extents
                      WHERE partition_key = p_key AND last_offset >= v_log_start AND last_offset < p_end) AS live
          FULL JOIN (SELECT last_offset, file_id FROM unnest(p_last, p_file) AS t (last_offset, file_id)
                      WHERE last_offset >= v_log_start) AS left_over USING (last_offset, file_id)
         WHERE live.last_offset IS NULL OR left_over.last_offset IS NULL
    ) THEN
        RETURN false;
    END IF;
    v_end := least(p_end, (SELECT base_offset FROM extents WHERE partition_key = p_key AND last_offset >= p_end
                            ORDER BY last_offset LIMIT 1));
    DELETE FROM damaged_extents WHERE partition_key = p_key AND last_offset < p_end;
    UPDATE cleaned_partitions c
       SET cleaned_offset = greatest(c.cleaned_offset, v_end), horizon_ms = p_horizon_ms,
           uncleanable_at = NULL, uncleanable_why = NULL,
           dirty_since = CASE WHEN v_end < c.roll_offset
                              THEN (SELECT record_time(newest_ms) FROM newest_of_extents(p_key, v_end, c.roll_offset)
                                     ORDER BY last_offset LIMIT 1) END
     WHERE c.partition_key = p_key;
    RETURN FOUND;
END $$;

-- Leave a partition out of cleaning for a while: not all of it can be read, or its keys do not fit.
-- Locks: the job's row, shared; the partition's row. Idempotent: yes. Cost: one update.
CREATE OR REPLACE FUNCTION mark_uncleanable(p_job_id bigint, p_epoch bigint, p_key bigint, p_why text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM FROM partitions WHERE partition_key = p_key FOR NO KEY UPDATE;
    UPDATE cleaned_partitions SET uncleanable_at = wall_time(), uncleanable_why = p_why WHERE partition_key = p_key;
END $$;
