-- What can be restored below the log starts of some partitions, one row per key in order: see whole_below, over up to
-- p_limit extents of each. p_retention_ms, p_retention_bytes: retention as it is for them; -1: it removes nothing.
-- Locks: none; one snapshot for all. Idempotent: reads only. Cost: as whole_below, per partition.
CREATE OR REPLACE FUNCTION removed_records(p_keys bigint[], p_limit int, p_retention_ms bigint, p_retention_bytes bigint)
RETURNS TABLE (outcome int, log_start_offset bigint, lowest bigint, kept_from bigint, extents int, bytes bigint,
               removed_ms bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT restore_refusal(q.key), coalesce(p.log_start_offset, -1), coalesce(w.lowest, -1), coalesce(w.kept_from, -1),
           coalesce(cardinality(w.removed), 0), coalesce(w.removed_bytes, 0), coalesce(w.removed_ms, -1)
      FROM unnest(p_keys) WITH ORDINALITY AS q (key, number)
      LEFT JOIN partitions p ON p.partition_key = q.key
      LEFT JOIN LATERAL (SELECT * FROM partition_heads WHERE partition_key = p.partition_key
                          ORDER BY update_block DESC LIMIT 1) AS h ON true
      LEFT JOIN LATERAL whole_below(p.partition_key, p.log_start_offset, 0, p_limit,
                                    CASE WHEN p_retention_ms >= 0 THEN wall_ms() - p_retention_ms END,
                                    CASE WHEN p_retention_bytes >= 0
                                         THEN p_retention_bytes - (h.appended_bytes - p.removed_bytes) END) AS w
             ON p.partition_key IS NOT NULL
     ORDER BY q.number;
END $$;
