-- Move a partition's log start back towards p_offset, over up to p_limit removed extents, and tell readers:
-- metastore.api.restoring.RestoreOutcome, the log start as it is now, and what came back. restore_unfinished(): there is
-- more to restore, ask again.
-- The log start never passes a hole: offsets of which the extent is not kept any more, or of which the file may be deleted.
-- Readers drop what they know of the partition, since a log start of which they know only grows; then they hear the new one.
-- Locks: the partition's row; the files' rows, ascending; last, its commit shard.
-- Idempotent: yes, a log start at or below p_offset stays. Cost: two writes per extent.
CREATE OR REPLACE FUNCTION restore_records(
    p_key bigint, p_offset bigint, p_limit int,
    OUT outcome int, OUT log_start_offset bigint, OUT extents int, OUT bytes bigint
)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_partition partitions;
    v_lowest    bigint;
    v_lasts     bigint[];
    v_found     int;
BEGIN
    SELECT * INTO v_partition FROM partitions WHERE partition_key = p_key FOR NO KEY UPDATE;
    outcome := restore_refusal(p_key);
    log_start_offset := coalesce(v_partition.log_start_offset, -1);
    extents := 0;
    bytes := 0;
    IF outcome <> restore_done() OR log_start_offset <= p_offset THEN
        RETURN;
    END IF;
    SELECT w.lowest, w.removed, w.extents, w.removed_bytes INTO v_lowest, v_lasts, v_found, bytes
      FROM whole_below(p_key, log_start_offset, p_offset, p_limit) AS w;
    IF v_lasts IS NOT NULL AND NOT revive_extents((SELECT array_agg(p_key) FROM unnest(v_lasts)), v_lasts) THEN
        outcome := restore_unfinished();  -- a file is being deleted since we looked: the next call stops above it
        bytes := 0;
        RETURN;
    END IF;
    extents := coalesce(cardinality(v_lasts), 0);
    IF v_lowest < log_start_offset THEN
        log_start_offset := greatest(v_lowest, p_offset);
        UPDATE partitions p
           SET log_start_offset = restore_records.log_start_offset, extents_from = least(p.extents_from, v_lowest),
               removed_bytes = p.removed_bytes - bytes
         WHERE p.partition_key = p_key;
        PERFORM lock_shards(ARRAY[v_partition.shard]);
        PERFORM append_feed(v_partition.shard, feed_topic_deleted(), int8send(p_key));
        PERFORM append_feed(v_partition.shard, feed_log_start(), int8send(p_key) || int8send(log_start_offset));
    END IF;
    outcome := CASE WHEN v_found >= p_limit AND log_start_offset > p_offset THEN restore_unfinished() ELSE restore_done() END;
END $$;

-- What is whole right below the log start p_start of a partition, down to the extent that has p_offset, over up to p_limit
-- extents: the lowest offset; how many extents; the last offsets of those in removed_extents, and their bytes; the time of
-- the lowest extent, as retention counts (oldest_extents.sql); when the first of them was removed.
-- lowest is p_start if nothing is.
-- Locks: none; the caller that acts on it holds the partition's row. Idempotent: reads only. Cost: O(p_limit), two probes each.
CREATE OR REPLACE FUNCTION whole_below(
    p_key bigint, p_start bigint, p_offset bigint, p_limit int,
    OUT lowest bigint, OUT extents int, OUT removed bigint[], OUT removed_bytes bigint, OUT oldest bigint,
    OUT removed_ms bigint
)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_next bigint;  -- the extent with the log start begins here, or at it
BEGIN
    v_next := least(p_start, (SELECT e.base_offset FROM extents e WHERE e.partition_key = p_key AND e.last_offset >= p_start
                               ORDER BY e.last_offset LIMIT 1));
    SELECT least(min(w.base_offset), v_next), count(*), array_agg(w.last_offset) FILTER (WHERE w.removed_at IS NOT NULL),
           coalesce(sum(w.length) FILTER (WHERE w.removed_at IS NOT NULL), 0),
           coalesce((array_agg(w.newest ORDER BY w.last_offset))[1], -1),
           coalesce(to_ms(min(w.removed_at)), -1)
      INTO lowest, extents, removed, removed_bytes, oldest, removed_ms
      FROM (SELECT f.*, bool_and(f.is_next AND f.has_file) OVER (ORDER BY f.last_offset DESC) AS is_whole
              FROM (SELECT b.*, b.last_offset + 1 = lag(b.base_offset, 1, v_next) OVER (ORDER BY b.last_offset DESC) AS is_next,
                           is_marker_id(b.file_id) OR s.state = file_live() IS TRUE AS has_file,
                           CASE WHEN b.appended_at IS NULL AND b.max_timestamp < 0 THEN to_ms(s.committed_at)
                                ELSE greatest(b.max_timestamp, to_ms(b.appended_at)) END AS newest
                      FROM ((SELECT e.last_offset, e.base_offset, e.file_id, e.length, e.max_timestamp, e.appended_at,
                                    NULL::timestamptz AS removed_at
                               FROM extents e WHERE e.partition_key = p_key AND e.last_offset < p_start
                              ORDER BY e.last_offset DESC LIMIT p_limit)
                            UNION ALL
                            (SELECT r.last_offset, r.base_offset, r.file_id, r.length, r.max_timestamp, r.appended_at,
                                    r.removed_at
                               FROM removed_extents r
                              WHERE r.partition_key = p_key AND r.last_offset < p_start AND r.life = cluster_life()
                              ORDER BY r.last_offset DESC LIMIT p_limit)
                            ORDER BY last_offset DESC LIMIT p_limit) AS b
                      LEFT JOIN segment_files s ON s.file_id = b.file_id) AS f) AS w
     WHERE w.is_whole AND w.last_offset >= p_offset;
END $$;

-- Why nothing below the log start of a partition may be restored; restore_done() if it may.
-- Locks: none. Idempotent: reads only. Cost: two probes.
CREATE OR REPLACE FUNCTION restore_refusal(p_key bigint) RETURNS int
LANGUAGE sql STABLE AS $$
    SELECT coalesce((
        SELECT CASE WHEN p.state = state_marked() THEN restore_marked()
                    WHEN EXISTS (SELECT FROM cleaned_partitions c WHERE c.partition_key = p_key) THEN restore_compacted()
                    ELSE restore_done() END
          FROM partitions p WHERE p.partition_key = p_key), restore_gone())
$$;
