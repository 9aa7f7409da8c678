-- Remove rows that one deleted partition left behind, up to p_limit of each kind; its entry goes once
-- nothing is left. Returns how many rows went or were changed, 0 when there is no deleted partition.
-- No reader sees these rows: partitions has no such key any more. Files lose the extents' live bytes.
-- Producer state stays: a topic of the same name may need it (goes_on_after_deletion). Each row counts as touched in
-- the hour of the deletion, so that expire_producer_state removes it one expiration later, and not before.
-- A partition with keys of remote segments gets its delete marker with the first call.
-- Locks: the partition's entry (skipped if another session has locked it), its files' rows, ascending, then its
-- segments' rows and the head of their log.
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
    v_files     uuid[];
    v_bytes     bigint[];
    v_extents   int;
    v_blocks    int;
    v_aborted   int;
    v_producers int;
    v_ends      bigint[];  -- by removed extent
    v_epochs    int[];
BEGIN
    SELECT partition_key, to_ms(deleted_at) / 3600000 INTO v_key, v_hour FROM deleted_partitions
     ORDER BY partition_key LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;

    WITH removed AS (
        DELETE FROM extents
         WHERE partition_key = v_key
           AND last_offset IN (SELECT last_offset FROM extents WHERE partition_key = v_key
                                ORDER BY last_offset LIMIT p_limit)
        RETURNING file_id, length, segment_end, segment_epoch
    )
    SELECT f.files, f.bytes, f.extents, s.ends, s.epochs INTO v_files, v_bytes, v_extents, v_ends, v_epochs
      FROM (SELECT array_agg(file_id) AS files, array_agg(bytes) AS bytes, coalesce(sum(extents), 0) AS extents
              FROM (SELECT file_id, sum(length) AS bytes, count(*) AS extents FROM removed GROUP BY file_id) AS g) AS f,
           (SELECT array_agg(segment_end) AS ends, array_agg(segment_epoch) AS epochs FROM removed
             WHERE segment_end IS NOT NULL) AS s;
    PERFORM drop_live_bytes(v_files, v_bytes);
    PERFORM begin_partition_delete(v_key);
    PERFORM end_removed((SELECT array_agg(v_key) FROM unnest(v_ends)), v_ends, v_epochs, cause_partition_deleted(), NULL);

    UPDATE producer_state SET touched_hour = v_hour
     WHERE partition_key = v_key
       AND producer_id IN (SELECT producer_id FROM producer_state WHERE partition_key = v_key AND touched_hour < v_hour
                            ORDER BY producer_id LIMIT p_limit);
    GET DIAGNOSTICS v_producers = ROW_COUNT;
    DELETE FROM time_blocks
     WHERE partition_key = v_key
       AND (level, last_offset) IN (SELECT level, last_offset FROM time_blocks WHERE partition_key = v_key
                                     ORDER BY level, last_offset LIMIT p_limit);
    GET DIAGNOSTICS v_blocks = ROW_COUNT;

    DELETE FROM aborted_transactions
     WHERE partition_key = v_key
       AND last_offset IN (SELECT last_offset FROM aborted_transactions WHERE partition_key = v_key
                            ORDER BY last_offset LIMIT p_limit);
    GET DIAGNOSTICS v_aborted = ROW_COUNT;

    IF greatest(v_extents, v_producers, v_blocks, v_aborted) < p_limit THEN
        DELETE FROM deleted_partitions WHERE partition_key = v_key;
        RETURN v_extents + v_producers + v_blocks + v_aborted + 1;
    END IF;
    RETURN v_extents + v_producers + v_blocks + v_aborted;
END $$;
