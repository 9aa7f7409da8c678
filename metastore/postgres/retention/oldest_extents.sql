-- What retention judges a partition by: its size, and its first extents from the log start on, up to
-- p_limits[i] of partition p_keys[i]. newest: the highest timestamp in an extent, or when its records were
-- committed if they have none (a merged file is younger than they: extents.appended_at).
-- One row per query, in order: NULLs for a partition that is gone; all as of one instant.
-- Locks: none. Idempotent: reads only. Cost: a few index probes per query and one or two per extent.
CREATE OR REPLACE FUNCTION oldest_extents(p_keys bigint[], p_limits int[])
RETURNS TABLE (now_ms bigint, log_start_offset bigint, high_watermark bigint, size bigint, has_leftovers boolean,
               last_offsets bigint[], lengths bigint[], newest bigint[])
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
    SELECT wall_ms(), p.log_start_offset, h.high_watermark, h.appended_bytes - p.removed_bytes,
           p.extents_from < p.log_start_offset,
           e.last_offsets, e.lengths, e.newest
      FROM unnest(p_keys, p_limits) WITH ORDINALITY AS q (key, most, number)
      LEFT JOIN partitions p ON p.partition_key = q.key
      LEFT JOIN LATERAL (SELECT * FROM partition_heads WHERE partition_key = p.partition_key
                          ORDER BY update_block DESC LIMIT 1) AS h ON true
      LEFT JOIN LATERAL (
          SELECT array_agg(x.last_offset ORDER BY x.last_offset) AS last_offsets,
                 array_agg(x.length ORDER BY x.last_offset) AS lengths,
                 array_agg(CASE WHEN x.appended_at IS NULL AND x.max_timestamp < 0
                                THEN (SELECT to_ms(committed_at) FROM segment_files WHERE file_id = x.file_id)
                                ELSE greatest(x.max_timestamp, to_ms(x.appended_at)) END
                           ORDER BY x.last_offset) AS newest
            FROM (SELECT * FROM extents
                   WHERE partition_key = p.partition_key AND last_offset >= p.log_start_offset
                   ORDER BY last_offset LIMIT q.most) AS x) AS e ON true
     ORDER BY number;
END $$;
