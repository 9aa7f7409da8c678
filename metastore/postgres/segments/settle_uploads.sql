-- What a swap means for the segments of its file.

-- By swap: the end offset of the segment that it belongs to, which this lease started for this file; NULL for one of a
-- deleted partition. NULL altogether if a swap of a partition that is there has none: its file was not reserved for it.
-- Locks: none. Idempotent: reads only. Cost: one index probe per swap.
CREATE OR REPLACE FUNCTION segments_of_swaps(p_epoch bigint, p_file_id uuid, p_key bigint[], p_last bigint[])
RETURNS bigint[]
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_ends     bigint[];
    v_complete boolean;
BEGIN
    SELECT array_agg(s.end_offset ORDER BY t.number), bool_and(s.end_offset IS NOT NULL OR p.partition_key IS NULL)
      INTO v_ends, v_complete
      FROM unnest(p_key, p_last) WITH ORDINALITY AS t (key, last, number)
      LEFT JOIN partitions p ON p.partition_key = t.key
      LEFT JOIN LATERAL (SELECT end_offset FROM remote_segments r
                          WHERE r.topic_id = p.topic_id AND r.partition_index = p.partition_index
                            AND r.end_offset >= t.last AND r.epoch = p_epoch AND r.file_id = p_file_id
                          ORDER BY end_offset LIMIT 1) AS s ON true;
    RETURN CASE WHEN v_complete THEN v_ends END;
END $$;

-- By swap: whether it may still be done. Not if a call has settled its segment, nor if the call as a whole is too late
-- (p_may false). Swaps without a segment are judged by their inputs alone.
-- Locks: none; the caller holds lease and file. Idempotent: reads only. Cost: one index probe per swap.
CREATE OR REPLACE FUNCTION segments_are_open(p_epoch bigint, p_key bigint[], p_end bigint[], p_may boolean)
RETURNS boolean[]
LANGUAGE sql STABLE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
    SELECT array_agg(p_may AND coalesce(s.state, segment_copy_started()) = segment_copy_started() ORDER BY t.number)
      FROM unnest(p_key, p_end) WITH ORDINALITY AS t (key, end_offset, number)
      LEFT JOIN partitions p ON p.partition_key = t.key
      LEFT JOIN remote_segments s ON s.topic_id = p.topic_id AND s.partition_index = p.partition_index
                                 AND s.end_offset = t.end_offset AND s.epoch = p_epoch
$$;

-- COPY_FINISHED for the segments with a swap that was done now; DELETE_STARTED for those that lost all of them. One element
-- per swap, as in swap_extents; p_end NULL: no segment. The caller holds the heads' rows. How many live extents were
-- counted.
-- Locks: the keys' rows. Idempotent: a segment that was settled before is left.
-- Cost: an update and an insert per segment.
CREATE OR REPLACE FUNCTION settle_segments(
    p_job_id bigint, p_epoch bigint, p_key bigint[], p_end bigint[], p_intact boolean[]
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET jit = off
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_finished remote_segments[];
    v_lost     remote_segments[];
    v_counted  bigint;
BEGIN
    WITH counted AS (
        UPDATE remote_segments s SET live_extents = s.live_extents + g.done
          FROM (SELECT topic_id, partition_index, end_offset, count(*) FILTER (WHERE intact)::int AS done
                  FROM unnest(p_key, p_end, p_intact) AS t (key, end_offset, intact)
                  JOIN partitions p ON p.partition_key = key
                 WHERE t.end_offset IS NOT NULL
                 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3) AS g
         WHERE s.topic_id = g.topic_id AND s.partition_index = g.partition_index AND s.end_offset = g.end_offset
           AND s.epoch = p_epoch
           AND s.state IN (segment_copy_started(), segment_copy_finished())
        RETURNING s.*, g.done
    )
    SELECT array_agg(k ORDER BY k.topic_id, k.partition_index, k.end_offset) FILTER (WHERE c.done > 0),
           array_agg(k ORDER BY k.topic_id, k.partition_index, k.end_offset) FILTER (WHERE c.done = 0),
           coalesce((SELECT sum(done) FROM counted), 0)
      INTO v_finished, v_lost, v_counted
      FROM remote_segments k JOIN counted c USING (topic_id, partition_index, end_offset, epoch)
     WHERE k.state = segment_copy_started();
    PERFORM record_keys(v_finished, segment_copy_finished(), cause_upload(), p_job_id);
    PERFORM record_keys(v_lost, segment_delete_started(), cause_lost(), p_job_id);
    RETURN v_counted;
END $$;

-- end_segments for removed extents of partitions that are there, or are being purged; p_end NULL: an extent without key.
-- Locks, idempotence, cost: as that.
CREATE OR REPLACE FUNCTION end_removed(p_key bigint[], p_end bigint[], p_epoch int[], p_cause int, p_job_id bigint)
RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT end_segments(array_agg(coalesce(p.topic_id, d.topic_id)), array_agg(coalesce(p.partition_index, d.partition_index)),
                        array_agg(t.end_offset), array_agg(t.epoch), p_cause, p_job_id)
      FROM unnest(p_key, p_end, p_epoch) AS t (key, end_offset, epoch)
      LEFT JOIN partitions p ON p.partition_key = key
      LEFT JOIN deleted_partitions d ON d.partition_key = key
     WHERE t.end_offset IS NOT NULL
$$;
