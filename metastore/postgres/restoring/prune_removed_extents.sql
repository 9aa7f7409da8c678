-- Forget up to p_limit extents that were removed over file.delete.delay.ms ago: their files may be deleted. How many; 0
-- while the cluster has no value. What a deletion has removed goes with its topic (purge_deleted_partitions).
-- Of a partition the lowest offsets always go first, and with them its aborted transactions and time blocks up to there.
-- Locks: the partitions' rows (one that another session has locked is left for later). Idempotent: continues.
-- Cost: O(removed).
CREATE OR REPLACE FUNCTION prune_removed_extents(p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_before timestamptz := wall_time() - cluster_interval('file.delete.delay.ms');
    v_keys   bigint[];
    v_lasts  bigint[];
    v_rows   int;
BEGIN
    SELECT array_agg(d.key ORDER BY d.key), array_agg(d.last ORDER BY d.key) INTO v_keys, v_lasts
      FROM (SELECT due.partition_key AS key, max(due.last_offset) AS last
              FROM (SELECT x.partition_key, x.last_offset
                      FROM removed_extents x
                      LEFT JOIN restorable_topics t ON t.topic_number = x.partition_key >> 24
                     WHERE x.removed_at < v_before AND coalesce(x.removed_at < t.deleted_at, true)
                     ORDER BY x.removed_at LIMIT p_limit) AS due
             GROUP BY due.partition_key) AS d;
    IF v_keys IS NULL THEN
        RETURN 0;
    END IF;
    SELECT array_agg(d.key), array_agg(d.last) INTO v_keys, v_lasts
      FROM unnest(v_keys, v_lasts) AS d (key, last)
     WHERE NOT EXISTS (SELECT FROM partitions p WHERE p.partition_key = d.key)
        OR d.key = ANY (ARRAY(SELECT p.partition_key FROM partitions p WHERE p.partition_key = ANY (v_keys)
                               ORDER BY p.partition_key FOR NO KEY UPDATE SKIP LOCKED));
    WITH gone AS (
        DELETE FROM removed_extents r USING unnest(v_keys, v_lasts) AS d (key, last)
         WHERE r.partition_key = d.key AND r.last_offset <= d.last
        RETURNING r.partition_key, r.last_offset
    )
    SELECT array_agg(g.key), array_agg(g.last), coalesce(sum(g.extents), 0) INTO v_keys, v_lasts, v_rows
      FROM (SELECT partition_key AS key, max(last_offset) AS last, count(*) AS extents FROM gone GROUP BY 1) AS g;
    PERFORM forget_below(v_keys, (SELECT array_agg(0::bigint) FROM unnest(v_keys)), v_lasts);
    RETURN v_rows;
END $$;

-- Remove what is only needed to read offsets from p_firsts to p_lasts: time blocks and aborted transactions.
-- Locks: none; the caller holds the partitions' rows. Idempotent: yes. Cost: O(removed), five probes per partition.
CREATE OR REPLACE FUNCTION forget_below(p_keys bigint[], p_firsts bigint[], p_lasts bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
BEGIN
    WITH expired AS MATERIALIZED (
        SELECT b.row
          FROM unnest(p_keys, p_firsts, p_lasts) AS t (key, first, last)
         CROSS JOIN (VALUES (0), (1), (2), (3)) AS l (level)
         CROSS JOIN LATERAL (SELECT ctid AS row FROM time_blocks
                              WHERE partition_key = t.key AND time_blocks.level = l.level
                                AND last_offset BETWEEN t.first AND t.last
                             OFFSET 0) AS b
    )
    DELETE FROM time_blocks b USING expired x WHERE b.ctid = x.row;
    DELETE FROM aborted_transactions a USING unnest(p_keys, p_firsts, p_lasts) AS t (key, first, last)
     WHERE a.partition_key = t.key AND a.last_offset BETWEEN t.first AND t.last;
END $$;
