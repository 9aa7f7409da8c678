-- ListOffsets for many partitions: p_timestamps holds metastore.api.read.OffsetKind or milliseconds.
-- One row per query, in order: not known for a partition that is gone; an extent if a timestamp found one.
-- Locks: none; one snapshot for all. Idempotent: reads only.
-- Cost: two index probes per query, and find_timestamp where a timestamp is asked for.
CREATE OR REPLACE FUNCTION list_offsets(p_keys bigint[], p_timestamps bigint[])
RETURNS TABLE (known boolean, found_offset bigint, leader_epoch int, extent bytea)
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
           CASE q.stamp WHEN offset_latest() THEN h.high_watermark
                        WHEN offset_last_stable() THEN greatest(p.log_start_offset, coalesce(h.first_open_offset, h.high_watermark))
                        WHEN offset_earliest() THEN p.log_start_offset
                        ELSE coalesce(e.base_offset, -1) END,
           CASE q.stamp WHEN offset_latest() THEN p.leader_epoch
                        WHEN offset_last_stable() THEN p.leader_epoch
                        WHEN offset_earliest() THEN coalesce(e.leader_epoch, p.leader_epoch)
                        ELSE coalesce(e.leader_epoch, -1) END,
           CASE WHEN q.stamp NOT IN (offset_latest(), offset_last_stable(), offset_earliest()) AND e.partition_key IS NOT NULL THEN
               pack_extent(e.partition_key, e.base_offset, e.last_offset, e.file_id, e.position, e.length,
                           e.leader_epoch, e.max_timestamp) END
      FROM unnest(p_keys, p_timestamps) WITH ORDINALITY AS q (key, stamp, number)
      LEFT JOIN partitions p ON p.partition_key = q.key
      LEFT JOIN LATERAL (SELECT * FROM partition_heads WHERE partition_key = p.partition_key
                          ORDER BY update_block DESC LIMIT 1) AS h ON true
      LEFT JOIN LATERAL (
          (SELECT * FROM extents WHERE q.stamp = offset_earliest() AND partition_key = p.partition_key
                                   AND last_offset >= p.log_start_offset ORDER BY last_offset LIMIT 1)
          UNION ALL
          SELECT * FROM find_max_timestamp(p.partition_key, p.log_start_offset, h.max_timestamp)
           WHERE q.stamp = offset_max_timestamp()
          UNION ALL
          SELECT * FROM find_timestamp(p.partition_key, p.log_start_offset, q.stamp)
           WHERE q.stamp NOT IN (offset_latest(), offset_last_stable(), offset_earliest(), offset_max_timestamp())
      ) AS e ON true
     ORDER BY q.number;
END $$;
