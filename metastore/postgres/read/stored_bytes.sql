-- Bytes of all batches that were ever stored in a partition; NULL if it has no head.
-- A function, so that the planner cannot sort all versions of the row that a held snapshot keeps.
-- Locks: none. Idempotent: reads only. Cost: one index probe.
CREATE OR REPLACE FUNCTION stored_bytes(p_key bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
    RETURN (SELECT appended_bytes FROM partition_heads WHERE partition_key = p_key
             ORDER BY update_block DESC LIMIT 1);
END $$;
