-- Remove rows that one deleted partition left behind, up to p_limit of each kind; its entry goes once
-- nothing is left. Returns how many rows went or were changed, 0 when there is nothing to do.
-- No reader sees these rows: partitions has no such key any more. Files lose the extents' live bytes.
-- While its topic can be restored (restorable_topics), only its extents go, to removed_extents: so the files are dead since
-- then, and everything else stays. Once file.delete.delay.ms has passed since the deletion, or in another life of the metastore,
-- the topic cannot be restored any more: the call that finds it so forgets it, and further ones remove all that is left.
-- Producer state stays: a topic of the same name may need it (goes_on_after_deletion). Each row counts as touched in
-- the hour of the deletion, so that expire_producer_state removes it one expiration later, and not before.
-- A partition with keys of remote segments gets its delete marker with the first call after its topic is forgotten.
-- Locks: a topic's row, or the partition's entry and its topic's row (skipped if another session has locked one of them), its
-- files' rows, ascending, then its segments' rows and the head of their log.
-- Idempotent: repeating continues where it stopped. Cost: O(removed).
CREATE OR REPLACE FUNCTION purge_deleted_partitions(p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_key       bigint;
    v_hour      int;       -- of the deletion
    v_until     timestamptz;
    v_kept      boolean;
    v_rows      int;
    v_most      int;
    v_sum       int;
BEGIN
    IF forget_restorable_topic() THEN
        RETURN 1;
    END IF;
    SELECT d.partition_key, to_ms(d.deleted_at) / 3600000 INTO v_key, v_hour
      FROM deleted_partitions d LEFT JOIN restorable_topics r ON r.topic_number = d.partition_key >> 24
     WHERE NOT d.is_emptied AND coalesce(r.restoring_until < wall_time(), true)
     ORDER BY d.partition_key LIMIT 1 FOR UPDATE OF d SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    SELECT restoring_until INTO v_until FROM restorable_topics WHERE topic_number = v_key >> 24 FOR SHARE SKIP LOCKED;
    v_kept := FOUND;
    IF v_until >= wall_time() OR (NOT v_kept AND EXISTS (SELECT FROM restorable_topics
                                                           WHERE topic_number = v_key >> 24)) THEN
        RETURN 0;  -- it is being restored
    END IF;

    v_most := empty_partition(v_key, v_kept, p_limit);
    UPDATE producer_state SET touched_hour = v_hour
     WHERE partition_key = v_key
       AND producer_id IN (SELECT producer_id FROM producer_state WHERE partition_key = v_key AND touched_hour < v_hour
                            ORDER BY producer_id LIMIT p_limit);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_sum := v_most + v_rows;
    v_most := greatest(v_most, v_rows);
    IF v_kept THEN
        UPDATE deleted_partitions SET is_emptied = true WHERE partition_key = v_key AND v_most < p_limit;
        RETURN v_sum + 1;
    END IF;

    v_rows := forget_kept_extents(v_key, p_limit);
    v_sum := v_sum + v_rows;
    v_most := greatest(v_most, v_rows);
    DELETE FROM time_blocks
     WHERE partition_key = v_key
       AND (level, last_offset) IN (SELECT level, last_offset FROM time_blocks WHERE partition_key = v_key
                                     ORDER BY level, last_offset LIMIT p_limit);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_sum := v_sum + v_rows;
    v_most := greatest(v_most, v_rows);
    DELETE FROM aborted_transactions
     WHERE partition_key = v_key
       AND last_offset IN (SELECT last_offset FROM aborted_transactions WHERE partition_key = v_key
                            ORDER BY last_offset LIMIT p_limit);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_sum := v_sum + v_rows;
    v_most := greatest(v_most, v_rows);
    DELETE FROM deleted_topic_rows
     WHERE ctid = ANY (ARRAY(SELECT ctid FROM deleted_topic_rows WHERE topic_number = v_key >> 24
                              LIMIT p_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_sum := v_sum + v_rows;
    v_most := greatest(v_most, v_rows);

    IF v_most < p_limit THEN
        DELETE FROM deleted_partitions WHERE partition_key = v_key;
        RETURN v_sum + 1;
    END IF;
    RETURN v_sum;
END $$;

-- Take one topic that can no longer be restored from restorable_topics; whether there was one. Its partitions are to be
-- purged from now on.
-- Locks: the topic's row (one that another session has locked is left out), its partitions' entries. Idempotent: yes.
-- Cost: one row per partition of the topic.
CREATE OR REPLACE FUNCTION forget_restorable_topic() RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_number bigint;
BEGIN
    DELETE FROM restorable_topics
     WHERE topic_number = (SELECT topic_number FROM restorable_topics
                            WHERE (deleted_at < wall_time() - cluster_interval('file.delete.delay.ms')
                                   OR life <> cluster_life())
                              AND restoring_until < wall_time()
                            ORDER BY deleted_at LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING topic_number INTO v_number;
    IF v_number IS NULL THEN
        RETURN false;
    END IF;
    UPDATE deleted_partitions SET is_emptied = false
     WHERE partition_key >= v_number << 24 AND partition_key < (v_number + 1) << 24 AND is_emptied;
    RETURN true;
END $$;

-- Remove up to p_limit extents of a deleted partition, lowest first; p_keep: they are kept in removed_extents. How many.
-- If they are not, the partition gets its delete marker, and then its segments end.
-- Locks: the files' rows, ascending, then the segments' rows and the head of their log; the caller holds the partition's
-- entry. Idempotent: continues. Cost: O(removed).
CREATE OR REPLACE FUNCTION empty_partition(p_key bigint, p_keep boolean, p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_files   uuid[];
    v_bytes   bigint[];
    v_extents int;
    v_ends    bigint[];  -- by removed extent
    v_epochs  int[];
BEGIN
    WITH removed AS (
        DELETE FROM extents
         WHERE partition_key = p_key
           AND last_offset IN (SELECT last_offset FROM extents WHERE partition_key = p_key
                                ORDER BY last_offset LIMIT p_limit)
        RETURNING *
    ), kept AS (
        INSERT INTO removed_extents (partition_key, last_offset, base_offset, file_id, position, length, leader_epoch,
                                     max_timestamp, appended_at, segment_end, segment_epoch, removed_at, life)
        SELECT partition_key, last_offset, base_offset, file_id, position, length, leader_epoch, max_timestamp,
               appended_at, segment_end, segment_epoch, wall_time(), cluster_life()
          FROM removed WHERE p_keep
    )
    SELECT f.files, f.bytes, f.extents, s.ends, s.epochs INTO v_files, v_bytes, v_extents, v_ends, v_epochs
      FROM (SELECT array_agg(file_id) AS files, array_agg(bytes) AS bytes, coalesce(sum(extents), 0) AS extents
              FROM (SELECT file_id, sum(length) AS bytes, count(*) AS extents FROM removed GROUP BY file_id) AS g) AS f,
           (SELECT array_agg(segment_end) AS ends, array_agg(segment_epoch) AS epochs FROM removed
             WHERE segment_end IS NOT NULL) AS s;
    PERFORM drop_live_bytes(v_files, v_bytes);
    IF NOT p_keep THEN
        PERFORM begin_partition_delete(p_key);
        PERFORM end_removed((SELECT array_agg(p_key) FROM unnest(v_ends)), v_ends, v_epochs, cause_partition_deleted(), NULL);
    END IF;
    RETURN v_extents;
END $$;

-- Forget up to p_limit extents of a deleted partition that were kept, lowest first. How many. Their segments end as in
-- empty_partition, but as if at the deletion: no reader has seen them since then, so their files need not wait again.
-- Locks: the segments' rows and the head of their log; the caller holds the partition's entry. Idempotent: continues.
-- Cost: O(removed).
CREATE OR REPLACE FUNCTION forget_kept_extents(p_key bigint, p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_extents int;
    v_ends    bigint[];  -- by extent that had a segment
    v_epochs  int[];
BEGIN
    WITH forgotten AS (
        DELETE FROM removed_extents
         WHERE partition_key = p_key
           AND last_offset IN (SELECT last_offset FROM removed_extents WHERE partition_key = p_key
                                ORDER BY last_offset LIMIT p_limit)
        RETURNING segment_end, segment_epoch
    )
    SELECT count(*), array_agg(segment_end) FILTER (WHERE segment_end IS NOT NULL),
           array_agg(segment_epoch) FILTER (WHERE segment_end IS NOT NULL)
      INTO v_extents, v_ends, v_epochs
      FROM forgotten;
    PERFORM begin_partition_delete(p_key);
    IF v_ends IS NOT NULL THEN
        PERFORM end_removed((SELECT array_agg(p_key) FROM unnest(v_ends)), v_ends, v_epochs, cause_partition_deleted(), NULL);
        UPDATE remote_segments s SET due_at = d.deleted_at
          FROM deleted_partitions d
         WHERE d.partition_key = p_key AND s.topic_id = d.topic_id AND s.partition_index = d.partition_index
           AND s.state = segment_delete_started() AND s.cause = cause_partition_deleted()
           AND s.due_at > d.deleted_at AND s.tombstoned_at IS NULL;
    END IF;
    RETURN v_extents;
END $$;
