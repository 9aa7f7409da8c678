-- What the policy of cleaning by key decides by, for partitions of compacted topics. p_min_lag_ms[i]: the topic's
-- min.compaction.lag.ms. One row per query, in order: NULLs for a partition that is gone.
-- The cleanable part ends at the roll offset, at the first offset of an open transaction, or before the first dirty extent
-- that is too young. An extent that crosses the roll offset is not cleanable. The newest time of an extent is as in oldest_extents.
-- active_since: as stored while the log start has not passed the record that it is the time of; else of the first active
-- extent (first_active). Bytes below the log start are not active.
-- clean_bytes: 0 if neither a dirty extent nor a due horizon makes a pass read them.
-- Locks: none. Idempotent: reads only. Cost: a few index probes per query, one or two per extent between cleaned and
-- roll offset; if there are any, or a horizon is due, one row per extent below.
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
    SELECT v_now, h.high_watermark, c.roll_offset,
           CASE WHEN p.log_start_offset > c.roll_offset THEN h.appended_bytes - p.removed_bytes - g.bytes
                ELSE h.appended_bytes - c.rolled_bytes END,
           CASE WHEN h.high_watermark > greatest(c.roll_offset, p.log_start_offset)
                THEN coalesce(n.noted_ms, a.since_ms) END,
           n.noted_ms IS NOT NULL, c.cleaned_offset, coalesce(d.cleanable_end, c.cleaned_offset),
           coalesce(b.dirty_bytes, 0)::bigint,
           CASE WHEN b.dirty_bytes > 0 OR c.horizon_ms <= v_now
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
                                coalesce(k.cleaned_offset, 0) AS cleaned_offset, k.dirty_since, k.horizon_ms,
                                k.uncleanable_at) AS c
     CROSS JOIN LATERAL (SELECT noted_since(k, p.log_start_offset) AS noted_ms) AS n
      LEFT JOIN LATERAL first_active(p.partition_key, greatest(c.roll_offset, p.log_start_offset)) AS a ON true
     CROSS JOIN LATERAL (SELECT coalesce(sum(length), 0)::bigint AS bytes FROM extents  -- retention has not removed them yet
                          WHERE partition_key = p.partition_key AND last_offset >= p.extents_from
                            AND last_offset < p.log_start_offset) AS g
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

-- Since when the active part has records, as stored; NULL if it is not, or if the log start has passed that record.
-- Locks: none. Idempotent: pure. Cost: none.
CREATE OR REPLACE FUNCTION noted_since(p_row cleaned_partitions, p_log_start bigint) RETURNS bigint
LANGUAGE sql STABLE
RETURN CASE WHEN p_log_start <= coalesce(p_row.active_offset, p_row.roll_offset) THEN to_ms(p_row.active_since) END;

-- The first extent of an active part that begins at p_from: its last offset, and when it was committed, or the time in its
-- records if it was merged and that is earlier. No row if there is none.
-- Locks: none. Idempotent: reads only. Cost: two index probes.
CREATE OR REPLACE FUNCTION first_active(p_key bigint, p_from bigint) RETURNS TABLE (last_offset bigint, since_ms bigint)
LANGUAGE sql STABLE AS $$
    SELECT e.last_offset, CASE WHEN f.level > 0 AND e.max_timestamp >= 0
                               THEN least(to_ms(f.committed_at), e.max_timestamp) ELSE to_ms(f.committed_at) END
      FROM extents e JOIN segment_files f USING (file_id)
     WHERE e.partition_key = p_key AND e.last_offset >= p_from
     ORDER BY e.last_offset LIMIT 1
$$;
