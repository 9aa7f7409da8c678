-- Note since when active parts have records, and end those with p_rolls: what is committed from now on is
-- the next active part. p_since_ms: what the end was decided by; a part does not end if its first record is newer by now, because a log
-- start moved. The high watermark is read without the shard's lock, so it has at most moved on since, and no
-- extent crosses it.
-- Locks: the job's row, shared; the partitions' rows, ascending. Idempotent: a repeated roll moves on to the current high
-- watermark, which is as safe. Cost: a few index probes per partition.
CREATE OR REPLACE FUNCTION roll_partitions(
    p_job_id bigint, p_epoch bigint, p_keys bigint[], p_since_ms bigint[], p_rolls boolean[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM FROM partitions WHERE partition_key = ANY (p_keys) ORDER BY partition_key FOR NO KEY UPDATE;
    INSERT INTO cleaned_partitions AS c (partition_key, roll_offset, rolled_bytes, active_since, active_offset, dirty_since)
    SELECT p.partition_key, CASE WHEN r.rolls THEN h.high_watermark ELSE 0 END,
           CASE WHEN r.rolls THEN h.appended_bytes ELSE 0 END,
           CASE WHEN NOT r.rolls THEN record_time(n.since_ms) END, CASE WHEN NOT r.rolls THEN n.last_offset END,
           CASE WHEN r.rolls THEN record_time(n.since_ms) END
      FROM unnest(p_keys, p_since_ms, p_rolls) AS t (key, since_ms, rolls)
      JOIN partitions p ON p.partition_key = key
     CROSS JOIN LATERAL (SELECT high_watermark, appended_bytes FROM partition_heads WHERE partition_key = key
                          ORDER BY update_block DESC LIMIT 1) AS h
      LEFT JOIN cleaned_partitions k ON k.partition_key = key
      LEFT JOIN LATERAL first_active(key, greatest(coalesce(k.roll_offset, 0), p.log_start_offset)) AS a ON true
     CROSS JOIN LATERAL (SELECT coalesce(noted_since(k, p.log_start_offset), a.since_ms) AS since_ms,
                                CASE WHEN noted_since(k, p.log_start_offset) IS NULL THEN a.last_offset
                                     ELSE k.active_offset END AS last_offset) AS n
     CROSS JOIN LATERAL (SELECT t.rolls AND n.since_ms <= t.since_ms AS rolls) AS r
     WHERE n.since_ms IS NOT NULL
     ORDER BY p.partition_key
    ON CONFLICT (partition_key) DO UPDATE
       SET roll_offset = greatest(c.roll_offset, excluded.roll_offset),
           rolled_bytes = greatest(c.rolled_bytes, excluded.rolled_bytes),
           active_since = excluded.active_since, active_offset = excluded.active_offset,
           dirty_since = coalesce(c.dirty_since, excluded.dirty_since);
END $$;
