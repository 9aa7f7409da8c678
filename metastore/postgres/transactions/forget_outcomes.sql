-- The bucket has how these transactions ended.
-- Locks: the job's row, shared. Idempotent: yes. Cost: one index probe per row.
CREATE OR REPLACE FUNCTION forget_outcomes(p_job_id bigint, p_epoch bigint, p_keys bigint[], p_offsets bigint[])
RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    DELETE FROM transaction_outcomes o USING unnest(p_keys, p_offsets) AS t (key, marker)
     WHERE o.partition_key = t.key AND o.marker_offset = t.marker;
END $$;
