-- The end of segments: references to files, DELETE_FINISHED, tombstones.

-- Release the references of keys that no reader needs any more: in DELETE_STARTED for the cluster's file.delete.delay.ms
-- and since before any read pin, as take_dead_files decides for files without keys. How many keys.
-- Locks: the job's row, shared; then as release_segments. Idempotent: yes. Cost: O(released), and one row per job.
CREATE OR REPLACE FUNCTION release_due_segments(p_job_id bigint, p_epoch bigint, p_incarnation_id uuid, p_limit int)
RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_delay interval := cluster_interval('file.delete.delay.ms');
BEGIN
    PERFORM assert_janitor(p_job_id, p_epoch, p_incarnation_id);
    RETURN release_segments(CASE WHEN v_delay IS NOT NULL THEN least(wall_time() - v_delay, read_horizon(p_job_id)) END,
                            p_limit);
END $$;

-- Release the references of up to p_limit keys in DELETE_STARTED since before p_before (NULL: none). With each go the
-- references of the keys of the same end offset with lower epochs, but for live ones, uploads under a lease, and those in
-- DELETE_STARTED that are not due themselves. A file that loses its last reference waits for its object's deletion, and
-- its keys with it; the others have nothing to wait for. The file is `deleting` now if no reader can need it: it was never
-- readable, or it is dead since before p_before. Else it remains a dead file, and take_dead_files takes it later: a key that
-- went with a higher epoch may have become unreadable after that one. A file that an extent names is not
-- deleted, even if the counters say that it is dead. How many keys were released.
-- Locks: the files' rows, ascending; the keys' rows. Idempotent: yes. Cost: O(released), through remote_segments_due.
CREATE OR REPLACE FUNCTION release_segments(p_before timestamptz, p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET jit = off
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_due   remote_segments[];
    v_files uuid[];
BEGIN
    SELECT array_agg(d::remote_segments) INTO v_due
      FROM (SELECT s.* FROM remote_segments s
             WHERE s.state = segment_delete_started() AND s.due_at < p_before AND s.due_at IS NOT NULL
               AND s.tombstoned_at IS NULL AND s.reference = reference_held()
             ORDER BY s.due_at LIMIT p_limit) AS d;
    IF v_due IS NULL THEN
        RETURN 0;
    END IF;
    SELECT array_agg(DISTINCT s.file_id) INTO v_files
      FROM unnest(v_due) AS d JOIN remote_segments s
        ON s.topic_id = d.topic_id AND s.partition_index = d.partition_index AND s.end_offset = d.end_offset
       AND s.epoch <= d.epoch AND s.reference = reference_held();
    PERFORM FROM segment_files WHERE file_id = ANY (v_files) ORDER BY file_id FOR NO KEY UPDATE;
    WITH spare AS (
        SELECT s.topic_id, s.partition_index, s.end_offset, s.epoch
          FROM remote_segments s
         WHERE (s.topic_id, s.partition_index, s.end_offset, s.epoch) IN (
                   SELECT o.topic_id, o.partition_index, o.end_offset, o.epoch
                     FROM unnest(v_due) AS d JOIN remote_segments o
                       ON o.topic_id = d.topic_id AND o.partition_index = d.partition_index
                      AND o.end_offset = d.end_offset AND o.epoch <= d.epoch)
           AND s.reference = reference_held() AND s.live_extents = 0 AND s.tombstoned_at IS NULL
           AND s.file_id = ANY (v_files) AND NOT segment_is_leased(s)
           AND (s.state <> segment_delete_started() OR s.due_at < p_before)
         ORDER BY s.topic_id, s.partition_index, s.end_offset, s.epoch FOR NO KEY UPDATE
    ), released AS (
        UPDATE remote_segments s SET reference = reference_awaits_object() FROM spare k
         WHERE s.topic_id = k.topic_id AND s.partition_index = k.partition_index AND s.end_offset = k.end_offset
           AND s.epoch = k.epoch
        RETURNING s.file_id
    )
    UPDATE segment_files f
       SET segments = f.segments - r.keys,
           state = CASE WHEN f.segments = r.keys AND file_is_unneeded(f, p_before) THEN file_deleting() ELSE f.state END,
           dead_at = CASE WHEN f.segments = r.keys AND f.live_bytes = 0 THEN coalesce(f.dead_at, wall_time())
                          ELSE f.dead_at END  -- restored extents have no keys
      FROM (SELECT file_id, count(*)::int AS keys FROM released GROUP BY file_id) AS r
     WHERE f.file_id = r.file_id;
    -- a file that others refer to, or that is gone already
    UPDATE remote_segments s SET reference = reference_released()
     WHERE s.reference = reference_awaits_object() AND s.file_id = ANY (v_files)
       AND NOT EXISTS (SELECT FROM segment_files f WHERE f.file_id = s.file_id AND f.segments = 0);
    PERFORM finish_deletions(v_due);
    RETURN cardinality(v_due);
END $$;

-- Whether no reader can need a file without references: nothing in it was ever readable, or nothing is since before
-- p_before, nor may it repair a damaged file. By its extents, and by dead_at, which is set when the last one is removed.
-- Locks: none; the caller holds the file's row, so no extent is added. Idempotent: reads only. Cost: one index probe.
CREATE OR REPLACE FUNCTION file_is_unneeded(p_file segment_files, p_before timestamptz) RETURNS boolean
LANGUAGE sql STABLE
RETURN (p_file.state = file_reserved() OR p_file.dead_at < p_before) AND NOT held_for_repair(p_file)
       AND NOT EXISTS (SELECT FROM extents e WHERE e.file_id = p_file.file_id);

-- Record DELETE_FINISHED for keys in DELETE_STARTED that have nothing to wait for: neither for their own file nor for one
-- of a lower epoch. p_keys: keys of the end offsets in question.
-- Locks: the keys' rows; the heads' rows, ascending. Idempotent: yes. Cost: O(p_keys).
CREATE OR REPLACE FUNCTION finish_deletions(p_keys remote_segments[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET jit = off
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_ready remote_segments[];
BEGIN
    SELECT array_agg(r::remote_segments ORDER BY r.topic_id, r.partition_index, r.end_offset, r.epoch) INTO v_ready
      FROM (SELECT s.* FROM remote_segments s
             WHERE (s.topic_id, s.partition_index, s.end_offset) IN
                   (SELECT topic_id, partition_index, end_offset FROM unnest(p_keys))
               AND s.state = segment_delete_started() AND s.reference = reference_released()
               AND s.tombstoned_at IS NULL
               AND NOT EXISTS (SELECT FROM remote_segments o
                                WHERE o.topic_id = s.topic_id AND o.partition_index = s.partition_index
                                  AND o.end_offset = s.end_offset AND o.epoch < s.epoch
                                  AND o.reference <> reference_released() AND o.live_extents = 0
                                  AND o.tombstoned_at IS NULL AND NOT segment_is_leased(o))
             ORDER BY s.topic_id, s.partition_index, s.end_offset, s.epoch FOR UPDATE) AS r;
    PERFORM lock_log_heads(array_agg(r.metadata_partition)) FROM unnest(v_ready) AS r;
    PERFORM record_keys(array_agg(r ORDER BY r.topic_id, r.partition_index, r.end_offset, r.epoch),
                        segment_delete_finished(), r.cause, NULL)
       FROM unnest(v_ready) AS r GROUP BY r.cause;
END $$;

-- The objects of these files are gone, and so are their rows: the keys that waited for them continue.
-- Locks: the keys' rows; the heads' rows, ascending; after the files' rows. Idempotent: yes. Cost: O(keys).
CREATE OR REPLACE FUNCTION forget_objects(p_files uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET jit = off
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_freed remote_segments[];
BEGIN
    PERFORM FROM remote_segments WHERE reference = reference_awaits_object() AND file_id = ANY (p_files)
      ORDER BY topic_id, partition_index, end_offset, epoch FOR NO KEY UPDATE;
    WITH freed AS (
        UPDATE remote_segments SET reference = reference_released()
         WHERE reference = reference_awaits_object() AND file_id = ANY (p_files)
        RETURNING *
    )
    SELECT array_agg(f::remote_segments) INTO v_freed FROM freed f;
    PERFORM finish_deletions(v_freed);
END $$;

-- Tombstones for up to p_limit keys in DELETE_FINISHED, and for all keys of their end offsets with lower epochs, each
-- key's own last. Never for a key with live extents, nor for an upload under a lease. How many tombstones.
-- Locks: the keys' rows; the heads' rows, ascending. Idempotent: yes. Cost: an update per tombstone.
CREATE OR REPLACE FUNCTION tombstone_segments(p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET jit = off
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_keys    remote_segments[];
    v_parts   smallint[];
    v_offsets bigint[];
    v_now     timestamptz;
BEGIN
    WITH finished AS (
        SELECT topic_id, partition_index, end_offset, epoch FROM remote_segments
         WHERE state = segment_delete_finished() AND due_at IS NOT NULL AND tombstoned_at IS NULL
         ORDER BY due_at LIMIT p_limit
    )
    SELECT array_agg(k::remote_segments ORDER BY k.topic_id, k.partition_index, k.end_offset, k.epoch) INTO v_keys
      FROM (SELECT s.* FROM remote_segments s
             WHERE (s.topic_id, s.partition_index, s.end_offset, s.epoch) IN (
                       SELECT o.topic_id, o.partition_index, o.end_offset, o.epoch
                         FROM finished d JOIN remote_segments o
                           ON o.topic_id = d.topic_id AND o.partition_index = d.partition_index
                          AND o.end_offset = d.end_offset AND o.epoch <= d.epoch)
               AND s.tombstoned_at IS NULL AND s.live_extents = 0 AND s.reference = reference_released()
               AND s.state <> segment_delete_started() AND NOT segment_is_leased(s)
             ORDER BY s.topic_id, s.partition_index, s.end_offset, s.epoch FOR UPDATE) AS k;
    IF v_keys IS NULL THEN
        RETURN 0;
    END IF;
    SELECT array_agg(k.metadata_partition ORDER BY k.topic_id, k.partition_index, k.end_offset, k.epoch) INTO v_parts
      FROM unnest(v_keys) AS k;
    SELECT array_agg(log_offset ORDER BY number) INTO v_offsets FROM next_log_offsets(v_parts, false);
    v_now := wall_time();
    UPDATE remote_segments s
       SET tombstoned_at = v_now, event_ms = to_ms(v_now), log_offset = k.log_offset
      FROM (SELECT topic_id, partition_index, end_offset, epoch, v_offsets[row_number() OVER (
                       ORDER BY topic_id, partition_index, end_offset, epoch)] AS log_offset
              FROM unnest(v_keys)) AS k
     WHERE s.topic_id = k.topic_id AND s.partition_index = k.partition_index AND s.end_offset = k.end_offset
       AND s.epoch = k.epoch;
    RETURN cardinality(v_keys);
END $$;
