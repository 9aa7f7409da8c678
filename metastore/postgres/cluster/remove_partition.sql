-- Remove a marked partition that is empty: metastore.api.topics.RemovalOutcome; NULL for a stale controller epoch.
-- First up to p_limit producer states, group offsets, share partitions, time blocks and removed extents in one call; the partition itself goes with the
-- call that finds fewer, so nothing of it is left for the index's next partition. Its head is remembered.
-- Locks: controller (shared), metadata_head, the partition's row, its group offsets and share partitions by group, its
-- commit shard.
-- Idempotent: a repeated call continues, or finds the head moved. Cost: O(removed).
CREATE OR REPLACE FUNCTION remove_partition(
    p_controller_epoch bigint, p_expected_head bigint, p_record bytea, p_topic_id uuid, p_index int, p_limit int
) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_partition partitions;
    v_key       bigint;
    v_head      bigint;
    v_rows      int;
    v_most      int := 0;
BEGIN
    IF NOT is_controller(p_controller_epoch) THEN
        RETURN NULL;
    END IF;
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN removal_head_moved();
    END IF;
    SELECT * INTO STRICT v_partition FROM partitions WHERE topic_id = p_topic_id AND partition_index = p_index FOR UPDATE;
    v_key := v_partition.partition_key;
    IF v_partition.state <> state_marked() THEN
        RAISE EXCEPTION 'partition is not marked: partition_key=% state=%', v_key, v_partition.state;
    END IF;
    PERFORM lock_shards(ARRAY[v_partition.shard]);  -- a bulk write that was decided before the mark may still append
    SELECT max(high_watermark) INTO v_head FROM partition_heads WHERE partition_key = v_key;
    IF v_partition.log_start_offset < v_head OR EXISTS (SELECT FROM extents WHERE partition_key = v_key)
       OR EXISTS (SELECT FROM bulk_write_chunks c JOIN bulk_writes w USING (attempt)
                   WHERE c.chunk >= w.next_chunk AND v_key = ANY (c.run_key)) THEN
        RETURN removal_not_empty();
    END IF;

    DELETE FROM producer_state
     WHERE partition_key = v_key
       AND producer_id IN (SELECT producer_id FROM producer_state WHERE partition_key = v_key
                            ORDER BY producer_id LIMIT p_limit);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_most := greatest(v_most, v_rows);
    DELETE FROM group_offsets
     WHERE partition_key = v_key
       AND group_id IN (SELECT group_id FROM group_offsets WHERE partition_key = v_key
                         ORDER BY group_id LIMIT p_limit FOR UPDATE);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_most := greatest(v_most, v_rows);
    DELETE FROM share_partitions
     WHERE partition_key = v_key
       AND group_id IN (SELECT group_id FROM share_partitions WHERE partition_key = v_key
                         ORDER BY group_id LIMIT p_limit FOR UPDATE);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_most := greatest(v_most, v_rows);
    DELETE FROM time_blocks
     WHERE partition_key = v_key
       AND (level, last_offset) IN (SELECT level, last_offset FROM time_blocks WHERE partition_key = v_key
                                     ORDER BY level, last_offset LIMIT p_limit);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    v_most := greatest(v_most, v_rows);
    DELETE FROM removed_extents
     WHERE partition_key = v_key
       AND last_offset IN (SELECT last_offset FROM removed_extents WHERE partition_key = v_key
                            ORDER BY last_offset LIMIT p_limit);
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF greatest(v_most, v_rows) >= p_limit THEN
        RETURN removal_unfinished();
    END IF;

    PERFORM append_metadata(p_expected_head, ARRAY[p_record]);
    INSERT INTO removed_partitions (partition_key, topic_id, high_watermark, leader_epoch)
    VALUES (v_key, p_topic_id, v_head, v_partition.leader_epoch)
    ON CONFLICT (partition_key) DO UPDATE
       SET high_watermark = excluded.high_watermark, leader_epoch = excluded.leader_epoch;
    PERFORM append_feed(v_partition.shard, feed_topic_deleted(), int8send(v_key));
    DELETE FROM partitions WHERE partition_key = v_key;
    DELETE FROM partition_heads WHERE partition_key = v_key;
    DELETE FROM transaction_partitions WHERE partition_key = v_key;
    DELETE FROM pending_offsets WHERE partition_key = v_key;
    DELETE FROM aborted_transactions WHERE partition_key = v_key;
    DELETE FROM cleaned_partitions WHERE partition_key = v_key;
    RETURN removal_removed();
END $$;
