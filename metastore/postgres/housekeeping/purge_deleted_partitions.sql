-- Remove rows that one deleted partition left behind, up to p_limit of each kind; its entry goes once
-- nothing is left. Returns how many rows went, 0 when there is no deleted partition.
-- No reader sees these rows: partitions has no such key any more. Files lose the extents' live bytes.
-- Locks: the partition's entry (skipped if another session has locked it), then its files' rows, ascending.
-- Idempotent: repeating goes on where it stopped. Cost: O(removed).
CREATE OR REPLACE FUNCTION purge_deleted_partitions(p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_key       bigint;
    v_files     uuid[];
    v_bytes     bigint[];
    v_extents   int;
    v_blocks    int;
    v_producers int;
BEGIN
    SELECT partition_key INTO v_key FROM deleted_partitions
     ORDER BY partition_key LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;

    WITH removed AS (
        DELETE FROM extents
         WHERE partition_key = v_key
           AND last_offset IN (SELECT last_offset FROM extents WHERE partition_key = v_key
                                ORDER BY last_offset LIMIT p_limit)
        RETURNING file_id, length
    )
    SELECT array_agg(file_id), array_agg(bytes), coalesce(sum(extents), 0) INTO v_files, v_bytes, v_extents
      FROM (SELECT file_id, sum(length) AS bytes, count(*) AS extents FROM removed GROUP BY file_id) AS f;
    PERFORM drop_live_bytes(v_files, v_bytes);

    DELETE FROM producer_state
     WHERE partition_key = v_key
       AND producer_id IN (SELECT producer_id FROM producer_state WHERE partition_key = v_key
                            ORDER BY producer_id LIMIT p_limit);
    GET DIAGNOSTICS v_producers = ROW_COUNT;
    DELETE FROM time_blocks
     WHERE partition_key = v_key
       AND (level, last_offset) IN (SELECT level, last_offset FROM time_blocks WHERE partition_key = v_key
                                     ORDER BY level, last_offset LIMIT p_limit);
    GET DIAGNOSTICS v_blocks = ROW_COUNT;

    IF greatest(v_extents, v_producers, v_blocks) < p_limit THEN
        DELETE FROM deleted_partitions WHERE partition_key = v_key;
        RETURN v_extents + v_producers + v_blocks + 1;
    END IF;
    RETURN v_extents + v_producers + v_blocks;
END $$;
