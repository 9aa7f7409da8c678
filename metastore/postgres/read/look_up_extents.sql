-- What a reader at p_offsets[i] of p_keys[i] reads next: extents from the one that holds the offset (or
-- the log start) on, until they hold p_max_bytes[i]; at least one, at most 500.
-- All partitions share one budget. They get an extent each, then another one each, and so on, until p_extents are found
-- or hold p_total_bytes; what is left is found by the next call. If more than p_extents partitions have something to
-- read, the last ones of the call get nothing: a caller with so many puts others first in each call.
-- One row per query, in order: NULLs for a partition that is gone, else log start, high watermark and
-- the extents, packed (packing.py), all as of one instant; the first offset of an open transaction, NULL if none is open;
-- and the aborted transactions with offsets in these extents, packed, NULL if there are none.
-- Locks: none; one snapshot for all. Idempotent: reads only.
-- Cost: two index probes per query, two for aborted transactions, and one per extent in the answer (less than p_extents
-- and one per query), independent
-- of the history.
CREATE OR REPLACE FUNCTION look_up_extents(
    p_keys bigint[], p_offsets bigint[], p_max_bytes bigint[], p_extents int, p_total_bytes bigint
) RETURNS TABLE (log_start_offset bigint, high_watermark bigint, extents bytea, first_open_offset bigint,
                 aborted bytea)
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
    WITH RECURSIVE asked AS (
        SELECT q.number, q.max_bytes, p.partition_key, p.log_start_offset, h.high_watermark,
               h.first_open_offset, greatest(q.wanted, p.log_start_offset) AS start,
               count(*) FILTER (WHERE h.high_watermark > greatest(q.wanted, p.log_start_offset))
                   OVER (ORDER BY q.number ROWS UNBOUNDED PRECEDING) AS place  -- among those with something to read
          FROM unnest(p_keys, p_offsets, p_max_bytes) WITH ORDINALITY AS q (key, wanted, max_bytes, number)
          LEFT JOIN partitions p ON p.partition_key = q.key
          LEFT JOIN LATERAL (SELECT high_watermark, first_open_offset FROM partition_heads
                              WHERE partition_key = p.partition_key ORDER BY update_block DESC LIMIT 1) AS h ON true
    ), walk AS (
        SELECT a.number, a.max_bytes, a.log_start_offset, a.high_watermark, a.first_open_offset,
               a.start, 1 AS step, e.length AS taken,
               count(e.length) OVER () AS found, (sum(e.length) OVER ())::bigint AS bytes,
               e.partition_key, e.base_offset, e.last_offset, e.file_id, e.position, e.length, e.leader_epoch,
               e.max_timestamp
          FROM asked a
          LEFT JOIN LATERAL (SELECT * FROM extents
                              WHERE partition_key = a.partition_key AND last_offset >= a.start AND a.place <= p_extents
                              ORDER BY last_offset LIMIT 1) AS e ON true
        UNION ALL
        SELECT w.number, w.max_bytes, w.log_start_offset, w.high_watermark, w.first_open_offset,
               w.start, w.step + 1, w.taken + e.length,
               w.found + count(*) OVER (), (w.bytes + sum(e.length) OVER ())::bigint,
               e.partition_key, e.base_offset, e.last_offset, e.file_id, e.position, e.length, e.leader_epoch,
               e.max_timestamp
          FROM walk w
         CROSS JOIN LATERAL (SELECT * FROM extents
                              WHERE partition_key = w.partition_key AND last_offset > w.last_offset
                              ORDER BY last_offset LIMIT 1) AS e
         WHERE w.taken < w.max_bytes AND w.step < 500 AND w.found < p_extents AND w.bytes < p_total_bytes
    )
    SELECT max(log_start_offset), max(high_watermark),
           string_agg(pack_extent(partition_key, base_offset, last_offset, file_id, position, length, leader_epoch,
                                  max_timestamp), '' ORDER BY last_offset),
           max(first_open_offset), find_aborted(max(partition_key), max(start), max(last_offset))
      FROM walk
     GROUP BY number
     ORDER BY number;
END $$;
