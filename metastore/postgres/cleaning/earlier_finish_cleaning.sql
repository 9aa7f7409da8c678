-- finish_cleaning as workers of the release before call it: they did not read the extent that ends the log
-- (find_cleanable_extents), so the pass ends before it.
-- Locks, idempotence, cost: as that.
CREATE OR REPLACE FUNCTION finish_cleaning(
    p_job_id bigint, p_epoch bigint, p_key bigint, p_end bigint, p_last bigint[], p_file uuid[], p_horizon_ms bigint
) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT finish_cleaning(p_job_id, p_epoch, p_key,
                           least(p_end, (SELECT e.base_offset FROM extents e
                                          WHERE e.partition_key = p_key AND e.last_offset >= h.high_watermark - 1
                                          ORDER BY e.last_offset LIMIT 1)),
                           p_last, p_file, p_horizon_ms, h.high_watermark - 1)
      FROM (SELECT high_watermark FROM partition_heads WHERE partition_key = p_key
             ORDER BY update_block DESC LIMIT 1) AS h
$$;
