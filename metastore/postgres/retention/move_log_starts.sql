-- Move log starts forward and remove up to p_limit extents below them: retention and DeleteRecords.
-- p_offsets[i]: the wanted log start of partition p_keys[i]; -1 is its high watermark. One beyond the high
-- watermark, or below the log start, changes nothing. Each partition is named once.
-- Those extents are kept in removed_extents, and their aborted transactions and time blocks where they are, so that the log
-- start can be moved back (restore_records.sql) while the files are there; not if the cluster deletes files at once.
-- Output: one row per partition, in order; NULLs for one that is gone. What has_more says is left below a
-- log start is invisible to every reader; any later call continues with it.
-- p_job, p_epoch: NULL. Retention of an older version gives its lease here; it is refused, because it decides by the
-- file of its process. This version's calls enforce_retention.
--
-- Locks: the partitions' rows, ascending; the files' rows, ascending; the segments' rows and the heads of their logs; last,
-- and only to number the feed rows, the commit shards. A commit waits for that and for nothing else.
-- Idempotent: yes, log starts only move forward. Cost: a few index probes per partition, O(removed); it grows
-- with the square of the partitions, partly under the shards' locks (1 s for 4,000): take some hundreds at a time.
CREATE OR REPLACE FUNCTION move_log_starts(
    p_job bigint, p_epoch bigint, p_keys bigint[], p_offsets bigint[], p_limit int
) RETURNS TABLE (log_start_offset bigint, high_watermark bigint, extents int, bytes bigint, has_more boolean)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF p_job IS NOT NULL THEN
        RAISE EXCEPTION 'retention of an older version is refused: it does not follow the settings of the cluster';
    END IF;
    RETURN QUERY SELECT * FROM remove_below(NULL, p_keys, p_offsets, p_limit);
END $$;

-- move_log_starts, by a job that the caller has fenced, or by none (p_job NULL): segments' records name it.
-- Locks, idempotence, cost: as that.
CREATE OR REPLACE FUNCTION remove_below(
    p_job bigint, p_keys bigint[], p_offsets bigint[], p_limit int
) RETURNS TABLE (log_start_offset bigint, high_watermark bigint, extents int, bytes bigint, has_more boolean)
LANGUAGE plpgsql VOLATILE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_keys       bigint[];  -- those that are there
    v_heads      bigint[];  -- their high watermarks
    v_starts     bigint[];  -- their log starts from now on
    v_moved      boolean[];
    v_from       bigint[];  -- where extents are still to be removed from
    v_gone_keys  bigint[];  -- partitions that lost extents: how many, how much, up to where
    v_gone       int[];
    v_gone_bytes bigint[];
    v_gone_to    bigint[];
    v_files      uuid[];
    v_file_bytes bigint[];
    v_seg_keys   bigint[];  -- by removed extent of a segment
    v_seg_ends   bigint[];
    v_seg_epochs int[];
    v_keep       boolean := coalesce(cluster_interval('file.delete.delay.ms') > interval '0', true);
    v_life       int := cluster_life();
    v_now        timestamptz;
BEGIN
    PERFORM FROM partitions WHERE partition_key = ANY (p_keys) ORDER BY partition_key FOR NO KEY UPDATE;

    -- a high watermark that was read without its shard's lock has at most moved on since
    SELECT array_agg(key ORDER BY number), array_agg(h.high_watermark ORDER BY number),
           array_agg(start ORDER BY number), array_agg(start > p.log_start_offset ORDER BY number),
           array_agg(p.extents_from ORDER BY number)
      INTO v_keys, v_heads, v_starts, v_moved, v_from
      FROM unnest(p_keys, p_offsets) WITH ORDINALITY AS t (key, wanted, number)
      JOIN partitions p ON p.partition_key = key
     CROSS JOIN LATERAL (SELECT high_watermark FROM partition_heads WHERE partition_key = key
                          ORDER BY update_block DESC LIMIT 1) AS h
     CROSS JOIN LATERAL (SELECT CASE WHEN wanted = -1 THEN h.high_watermark
                                     WHEN wanted > h.high_watermark THEN p.log_start_offset
                                     ELSE greatest(wanted, p.log_start_offset) END AS start) AS s;

    v_now := wall_time();
    WITH expired AS (
        SELECT e.row
          FROM unnest(v_keys, v_from, v_starts) AS t (key, first, start)
         CROSS JOIN LATERAL (SELECT ctid AS row FROM extents
                              WHERE partition_key = key AND last_offset >= first AND last_offset < start
                              ORDER BY last_offset LIMIT p_limit) AS e
         LIMIT p_limit
    ), removed AS (
        DELETE FROM extents e USING expired x WHERE e.ctid = x.row  -- it stays there, we hold the partition's row
        RETURNING e.*
    ), kept AS (
        INSERT INTO removed_extents (partition_key, last_offset, base_offset, file_id, position, length, leader_epoch,
                                     max_timestamp, appended_at, removed_at, life)
        SELECT partition_key, last_offset, base_offset, file_id, position, length, leader_epoch, max_timestamp,
               appended_at, v_now, v_life
          FROM removed WHERE v_keep
    ), by_partition AS (
        SELECT partition_key, count(*) AS extents, sum(length) AS bytes, max(last_offset) AS last
          FROM removed GROUP BY partition_key
    ), by_file AS (
        SELECT file_id, sum(length) AS bytes FROM removed GROUP BY file_id
    )
    SELECT p.keys, p.extents, p.bytes, p.ends, f.files, f.bytes, s.keys, s.ends, s.epochs
      INTO v_gone_keys, v_gone, v_gone_bytes, v_gone_to, v_files, v_file_bytes, v_seg_keys, v_seg_ends, v_seg_epochs
      FROM (SELECT array_agg(partition_key) AS keys, array_agg(extents) AS extents, array_agg(bytes) AS bytes,
                   array_agg(last + 1) AS ends
              FROM by_partition) AS p,
           (SELECT array_agg(file_id) AS files, array_agg(bytes) AS bytes FROM by_file) AS f,
           (SELECT array_agg(partition_key) AS keys, array_agg(segment_end) AS ends, array_agg(segment_epoch) AS epochs
              FROM removed WHERE segment_end IS NOT NULL) AS s;
    PERFORM drop_live_bytes(v_files, v_file_bytes);
    PERFORM end_removed(v_seg_keys, v_seg_ends, v_seg_epochs, cause_log_start(), p_job);

    UPDATE partitions p
       SET log_start_offset = start, removed_bytes = p.removed_bytes + coalesce(g.bytes, 0),
           extents_from = CASE WHEN EXISTS (SELECT FROM extents
                                             WHERE partition_key = t.key AND last_offset >= coalesce(g.until, t.first)
                                               AND last_offset < t.start)
                               THEN coalesce(g.until, t.first) ELSE t.start END
      FROM unnest(v_keys, v_from, v_starts) AS t (key, first, start)
      LEFT JOIN unnest(v_gone_keys, v_gone_bytes, v_gone_to) AS g (key, bytes, until) ON g.key = t.key
     WHERE p.partition_key = t.key AND t.first < t.start;
    -- what is needed to restore them goes with them (prune_removed_extents)
    PERFORM forget_below(array_agg(t.key), array_agg(t.first), array_agg(p.extents_from - 1))
       FROM unnest(v_keys, v_from) AS t (key, first)
       JOIN partitions p ON p.partition_key = key
      WHERE t.first < p.extents_from AND NOT EXISTS (SELECT FROM removed_extents WHERE partition_key = t.key);

    PERFORM announce_log_starts(v_keys, v_starts, v_moved);
    RETURN QUERY
        SELECT t.start, t.head, coalesce(g.extents, 0), coalesce(g.bytes, 0)::bigint, p.extents_from < t.start
          FROM unnest(p_keys) WITH ORDINALITY AS q (key, number)
          LEFT JOIN unnest(v_keys, v_heads, v_starts) AS t (key, head, start) ON t.key = q.key
          LEFT JOIN partitions p ON p.partition_key = t.key
          LEFT JOIN unnest(v_gone_keys, v_gone, v_gone_bytes) AS g (key, extents, bytes) ON g.key = q.key
         ORDER BY number;
END $$;

-- Tell readers of those log starts that moved.
-- Locks: their commit shards, ascending; the caller holds the partitions' rows, so that a partition's moves
-- are announced in order. Idempotent: no. Cost: one feed row per shard.
CREATE OR REPLACE FUNCTION announce_log_starts(p_keys bigint[], p_starts bigint[], p_moved boolean[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_shards smallint := (SELECT commit_shards FROM cluster);
BEGIN
    PERFORM lock_shards(array_agg(commit_shard(key, v_shards)))
       FROM unnest(p_keys, p_moved) AS t (key, moved) WHERE moved;
    PERFORM append_feed(shard, feed_log_start(), payload)
       FROM (SELECT commit_shard(key, v_shards) AS shard,
                    string_agg(int8send(key) || int8send(start), ''::bytea ORDER BY key) AS payload
               FROM unnest(p_keys, p_starts, p_moved) AS t (key, start, moved)
              WHERE moved GROUP BY 1) AS m;
END $$;
