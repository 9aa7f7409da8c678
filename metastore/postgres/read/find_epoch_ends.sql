-- Where each partition's log ends for a reader that knows it up to a leader epoch. One row per query, in
-- order: not known for a partition that is gone, (-1, -1) for an epoch that is not there yet.
-- Locks: none; one snapshot for all. Idempotent: reads only.
-- Cost: a few index probes for the current epoch, up to 63 more for an older one; extents' epochs rise with offsets.
CREATE OR REPLACE FUNCTION find_epoch_ends(p_keys bigint[], p_epochs int[])
RETURNS TABLE (known boolean, leader_epoch int, end_offset bigint)
LANGUAGE plpgsql STABLE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT p.partition_key IS NOT NULL,
           CASE WHEN q.epoch > p.leader_epoch THEN -1 WHEN q.epoch = p.leader_epoch THEN q.epoch ELSE e.leader_epoch END,
           CASE WHEN q.epoch > p.leader_epoch THEN -1 WHEN q.epoch = p.leader_epoch THEN h.high_watermark
                ELSE e.end_offset END
      FROM unnest(p_keys, p_epochs) WITH ORDINALITY AS q (key, epoch, number)
      LEFT JOIN partitions p ON p.partition_key = q.key
      LEFT JOIN LATERAL (SELECT * FROM partition_heads WHERE partition_key = p.partition_key
                          ORDER BY update_block DESC LIMIT 1) AS h ON true
      LEFT JOIN LATERAL find_epoch_end(p.partition_key, q.epoch, p.log_start_offset, h.high_watermark) AS e
             ON q.epoch < p.leader_epoch
     ORDER BY q.number;
END $$;

-- The end of an epoch older than the current one: a binary search for the first extent of a later epoch.
-- Locks: none. Idempotent: reads only. Cost: an index probe per halving of the offsets.
CREATE OR REPLACE FUNCTION find_epoch_end(
    p_key bigint, p_epoch int, p_log_start bigint, p_high_watermark bigint,
    OUT leader_epoch int, OUT end_offset bigint
)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_low    bigint := p_log_start;         -- what is below is not of a later epoch
    v_high   bigint := p_high_watermark;    -- what is from here on is of a later epoch
    v_middle bigint;
    v_extent extents;
BEGIN
    WHILE v_low < v_high LOOP
        v_middle := v_low + (v_high - v_low) / 2;
        SELECT * INTO v_extent FROM extents e
         WHERE e.partition_key = p_key AND e.last_offset >= v_middle ORDER BY e.last_offset LIMIT 1;
        IF NOT FOUND THEN
            v_low := v_high;
        ELSIF v_extent.leader_epoch > p_epoch THEN
            v_high := greatest(v_low, least(v_middle, v_extent.base_offset));
        ELSE
            v_low := v_extent.last_offset + 1;
        END IF;
    END LOOP;
    end_offset := v_low;
    SELECT e.leader_epoch INTO leader_epoch FROM extents e
     WHERE e.partition_key = p_key AND e.last_offset >= p_log_start AND e.last_offset < v_low
     ORDER BY e.last_offset DESC LIMIT 1;
    leader_epoch := coalesce(leader_epoch, p_epoch);
END $$;
