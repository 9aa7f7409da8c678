-- What the policy of cleaning by key decides by, for partitions of compacted topics. p_min_lag_ms[i]: the topic's
-- min.compaction.lag.ms. One row per query, in order: NULLs for a partition that is gone.
-- The cleanable part ends at the roll offset, at the first offset of an open transaction, or before the first dirty extent
-- that is too young. An extent that crosses the roll offset is not cleanable. The newest time of an extent is as in oldest_extents.
-- active_since: as stored; else when the first active extent was committed, or the time in its records if it was merged.
-- Locks: none. Idempotent: reads only. Cost: a few index probes per query, one or two per extent between cleaned and
-- roll offset; if there are any, one row per extent below.
CREATE OR REPLACE FUNCTION describe_cleaning(p_keys bigint[], p_min_lag_ms bigint[])
RETURNS TABLE (now_ms bigint, high_watermark bigint, roll_offset bigint, active_bytes bigint, active_since_ms bigint,
               is_noted boolean, cleaned_offset bigint, cleanable_end bigint, dirty_bytes bigint, clean_bytes bigint,
               dirty_since_ms bigint, horizon_ms bigint, uncleanable_ms bigint)
LANGUAGE plpgsql STABLE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := wall_ms();
BEGIN
    RETURN QUERY
    SELECT v_now, h.high_watermark, c.roll_offset, h.appended_bytes - c.rolled_bytes,
           CASE WHEN h.high_watermark > greatest(c.roll_offset, p.log_start_offset)
                THEN coalesce(to_ms(c.active_since), a.since_ms) END,
           c.active_since IS NOT NULL, c.cleaned_offset, coalesce(d.cleanable_end, c.cleaned_offset),
           coalesce(b.dirty_bytes, 0)::bigint,
           CASE WHEN b.dirty_bytes > 0
                THEN (SELECT coalesce(sum(length), 0)::bigint FROM extents
                       WHERE partition_key = p.partition_key AND last_offset >= p.log_start_offset
                         AND last_offset < c.cleaned_offset)
                ELSE 0::bigint END,
           CASE WHEN b.dirty_bytes > 0 THEN coalesce(to_ms(c.dirty_since), b.oldest_ms) END,
           c.horizon_ms, to_ms(c.uncleanable_at)
      FROM unnest(p_keys, p_min_lag_ms) WITH ORDINALITY AS q (key, lag_ms, number)
      LEFT JOIN partitions p ON p.partition_key = q.key
      LEFT JOIN LATERAL (SELECT * FROM partition_heads WHERE partition_key = p.partition_key
                          ORDER BY update_block DESC LIMIT 1) AS h ON true
      LEFT JOIN cleaned_partitions k ON k.partition_key = p.partition_key
     CROSS JOIN LATERAL (SELECT coalesce(k.roll_offset, 0) AS roll_offset, coalesce(k.rolled_bytes, 0) AS rolled_bytes,
                                coalesce(k.cleaned_offset, 0) AS cleaned_offset, k.active_since, k.dirty_since,
                                k.horizon_ms, k.uncleanable_at) AS c
      LEFT JOIN LATERAL (
          SELECT CASE WHEN f.level > 0 AND e.max_timestamp >= 0
                      THEN least(to_ms(f.committed_at), e.max_timestamp) ELSE to_ms(f.committed_at) END AS since_ms
            FROM extents e JOIN segment_files f USING (file_id)
           WHERE e.partition_key = p.partition_key
             AND e.last_offset >= greatest(c.roll_offset, p.log_start_offset)
           ORDER BY e.last_offset LIMIT 1) AS a ON true
      LEFT JOIN LATERAL (
          SELECT coalesce(min(x.base_offset) FILTER (WHERE q.lag_ms > 0 AND x.newest_ms > v_now - q.lag_ms),
                          max(x.last_offset) + 1) AS cleanable_end
            FROM newest_of_extents(p.partition_key, greatest(c.cleaned_offset, p.log_start_offset),
                                  least(c.roll_offset, h.first_open_offset)) AS x
          ) AS d ON true
      LEFT JOIN LATERAL (
          SELECT sum(x.length) AS dirty_bytes, (array_agg(x.newest_ms ORDER BY x.last_offset))[1] AS oldest_ms
            FROM newest_of_extents(p.partition_key, greatest(c.cleaned_offset, p.log_start_offset),
                                  least(c.roll_offset, h.first_open_offset)) AS x
           WHERE x.last_offset < d.cleanable_end) AS b ON true
     ORDER BY q.number;
END $$;

-- A partition's extents with a last offset from p_from to below p_to, each with its newest time: the highest timestamp
-- of its records, or when they were committed if they have none.
-- Locks: none. Idempotent: reads only. Cost: one or two probes per extent.
CREATE OR REPLACE FUNCTION newest_of_extents(p_key bigint, p_from bigint, p_to bigint)
RETURNS TABLE (base_offset bigint, last_offset bigint, length bigint, newest_ms bigint)
LANGUAGE sql STABLE AS $$
    SELECT e.base_offset, e.last_offset, e.length,
           CASE WHEN e.appended_at IS NULL AND e.max_timestamp < 0
                THEN (SELECT to_ms(committed_at) FROM segment_files WHERE file_id = e.file_id)
                ELSE greatest(e.max_timestamp, to_ms(e.appended_at)) END
      FROM extents e
     WHERE e.partition_key = p_key AND e.last_offset >= p_from AND e.last_offset < p_to
$$;
