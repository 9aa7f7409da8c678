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
      FROM whole_below(p_key, log_start_offset, p_offset, p_limit, NULL, NULL) AS w;
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
-- extents: the lowest offset. And what of that has no extent at its beginning that retention would remove: the lowest
-- offset; how many extents; the last offsets of those in removed_extents, and their bytes; when the first of them was removed.
-- Retention would remove an extent with no time from p_oldest_ms on (as oldest_extents.sql counts), and one with p_room or
-- more bytes between it and p_start; NULL: neither. Both offsets are p_start if there is nothing.
-- Locks: none; the caller that acts on it holds the partition's row. Idempotent: reads only. Cost: O(p_limit), two probes each.
CREATE OR REPLACE FUNCTION whole_below(
    p_key bigint, p_start bigint, p_offset bigint, p_limit int, p_oldest_ms bigint, p_room bigint,
    OUT lowest bigint, OUT kept_from bigint, OUT extents int, OUT removed bigint[], OUT removed_bytes bigint,
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
    SELECT least(min(w.base_offset), v_next), least(min(w.base_offset) FILTER (WHERE w.is_kept), v_next),
           count(*) FILTER (WHERE w.is_kept),
           array_agg(w.last_offset) FILTER (WHERE w.is_kept AND w.removed_at IS NOT NULL),
           coalesce(sum(w.length) FILTER (WHERE w.is_kept AND w.removed_at IS NOT NULL), 0),
           coalesce(to_ms(min(w.removed_at) FILTER (WHERE w.is_kept)), -1)
      INTO lowest, kept_from, extents, removed, removed_bytes, removed_ms
      FROM (SELECT x.*, x.last_offset >= min(x.last_offset) FILTER (WHERE x.is_young AND x.fits) OVER () AS is_kept
              FROM (SELECT f.*, bool_and(f.is_next AND f.has_file) OVER down AS is_whole,
                           coalesce(f.newest >= p_oldest_ms, true) AS is_young,
                           coalesce(sum(f.length) OVER down - f.length < p_room, true) AS fits
                      FROM below_start(p_key, p_start, p_limit, v_next) AS f
                    WINDOW down AS (ORDER BY f.last_offset DESC)) AS x
             WHERE x.is_whole AND x.last_offset >= p_offset) AS w;
END $$;

-- Up to p_limit extents right below p_start, highest first: those that were not removed yet, and those of this life in
-- removed_extents. is_next: it ends where the one above begins, the first one before p_next. newest: as retention counts.
-- Locks: none. Idempotent: reads only. Cost: O(p_limit), two probes each.
CREATE OR REPLACE FUNCTION below_start(p_key bigint, p_start bigint, p_limit int, p_next bigint)
RETURNS TABLE (last_offset bigint, base_offset bigint, length bigint, removed_at timestamptz, is_next boolean,
               has_file boolean, newest bigint)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT b.last_offset, b.base_offset, b.length, b.removed_at,
           b.last_offset + 1 = lag(b.base_offset, 1, p_next) OVER (ORDER BY b.last_offset DESC),
           is_marker_id(b.file_id) OR s.state = file_live() IS TRUE,
           CASE WHEN b.appended_at IS NULL AND b.max_timestamp < 0 THEN to_ms(s.committed_at)
                ELSE greatest(b.max_timestamp, to_ms(b.appended_at)) END
      FROM ((SELECT e.last_offset, e.base_offset, e.file_id, e.length, e.max_timestamp, e.appended_at,
                    NULL::timestamptz AS removed_at
               FROM extents e WHERE e.partition_key = p_key AND e.last_offset < p_start
              ORDER BY e.last_offset DESC LIMIT p_limit)
            UNION ALL
            (SELECT r.last_offset, r.base_offset, r.file_id, r.length, r.max_timestamp, r.appended_at, r.removed_at
               FROM removed_extents r
              WHERE r.partition_key = p_key AND r.last_offset < p_start AND r.life = cluster_life()
              ORDER BY r.last_offset DESC LIMIT p_limit)
            ORDER BY last_offset DESC LIMIT p_limit) AS b
      LEFT JOIN segment_files s ON s.file_id = b.file_id;
END $$;

-- Why nothing below the log start of a partition may be restored; restore_done() if it may. A linked one takes no records,
-- either: its log start is that of its source.
-- Locks: none. Idempotent: reads only. Cost: two probes.
CREATE OR REPLACE FUNCTION restore_refusal(p_key bigint) RETURNS int
LANGUAGE sql STABLE AS $$
    SELECT coalesce((
        SELECT CASE WHEN p.state IN (state_marked(), state_linked()) THEN restore_marked()
                    WHEN EXISTS (SELECT FROM cleaned_partitions c WHERE c.partition_key = p_key) THEN restore_compacted()
                    ELSE restore_done() END
          FROM partitions p WHERE p.partition_key = p_key), restore_gone())
$$;
