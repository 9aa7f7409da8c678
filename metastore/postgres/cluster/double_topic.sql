-- Double a topic for clients that know only the count: change_partition_counts, and each partition that was there is a
-- parent from then on, with one child. False, and nothing happened, when the log has moved on.
-- Groups with an offset in a parent get the child's end there, so that auto.offset.reset skips nothing: a new partition
-- is empty, and what is in one that was an alias is older than what its parent got. Share groups that began in a parent
-- begin there, too, unless they read the child before it was an alias.
-- Locks: metadata_head; the topic's partitions; all of its commit shards; the splits' rows.
-- Idempotent: a repeated call finds the head moved and does nothing.
-- Cost: a few rows per partition, one per group or share group and parent, one per producer of the last doubling.
CREATE OR REPLACE FUNCTION double_topic(
    p_expected_head      bigint,
    p_records            bytea[],
    p_topic_id           uuid,
    p_initial            int,
    p_count              int,       -- before
    p_raised_epochs      int[],     -- of 0 to p_count - 1
    p_created_epochs     int[],     -- of p_count to 2 * p_count - 1
    p_producer_quiet_ms  bigint,
    p_boundary_quiet_ms  bigint
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now_ms bigint;
BEGIN
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    PERFORM change_partition_counts(
        p_expected_head, p_records, ARRAY[p_topic_id], ARRAY[p_initial], ARRAY[2 * p_count],
        array_fill(p_topic_id, ARRAY[p_count]), array(SELECT generate_series(0, p_count - 1)), p_raised_epochs,
        array_fill(state_takes_records(), ARRAY[p_count]),
        array_fill(p_topic_id, ARRAY[p_count]), array(SELECT generate_series(p_count, 2 * p_count - 1)),
        p_created_epochs);
    -- from here on no commit of the topic runs
    UPDATE partitions SET state = CASE WHEN partition_index < p_count THEN state_splits() ELSE state_is_child() END
     WHERE topic_id = p_topic_id AND partition_index < 2 * p_count;
    v_now_ms := wall_ms();
    INSERT INTO partition_splits
           (parent_key, child_key, topic_id, producer_quiet_ms, boundary_quiet_ms, last_moved_ms, child_start)
    SELECT partition_key - p_count, partition_key, topic_id, p_producer_quiet_ms, p_boundary_quiet_ms, v_now_ms,
           (SELECT max(high_watermark) FROM partition_heads h WHERE h.partition_key = p.partition_key)
      FROM partitions p WHERE topic_id = p_topic_id AND partition_index BETWEEN p_count AND 2 * p_count - 1;
    INSERT INTO group_offsets (group_id, partition_key, committed_offset, leader_epoch, metadata, committed_at)
    SELECT o.group_id, c.partition_key, h.high_watermark, -1, '', wall_time()
      FROM partitions c JOIN group_offsets o ON o.partition_key = c.partition_key - p_count
     CROSS JOIN LATERAL (SELECT max(high_watermark) AS high_watermark FROM partition_heads
                          WHERE partition_key = c.partition_key) AS h
     WHERE c.topic_id = p_topic_id AND c.partition_index BETWEEN p_count AND 2 * p_count - 1
    ON CONFLICT (group_id, partition_key) DO NOTHING;
    -- nothing is kept (metastore/share_states.py); revision 0: what the group's coordinator writes is newer
    INSERT INTO share_partitions (group_id, partition_key, start_offset, kept, coordinator_epoch, revision, begun_offset)
    SELECT s.group_id, c.partition_key, h.high_watermark, '\x0100000000', s.coordinator_epoch, 0, h.high_watermark
      FROM partitions c JOIN share_partitions s ON s.partition_key = c.partition_key - p_count
     CROSS JOIN LATERAL (SELECT max(high_watermark) AS high_watermark FROM partition_heads
                          WHERE partition_key = c.partition_key) AS h
     WHERE c.topic_id = p_topic_id AND c.partition_index BETWEEN p_count AND 2 * p_count - 1
     ORDER BY c.partition_key, s.group_id
    ON CONFLICT (group_id, partition_key) DO NOTHING;
    RETURN true;
END $$;

-- The splits that wait for their boundary, and were quiet for long enough, oldest doubling first. Not while a bulk write
-- that was decided before the doubling will append to the parent: its keys may have moved. It is complete two minutes
-- later at most, as housekeeping continues with it.
-- A boundary is the parent's high watermark: no key that moved came since last_moved_ms.
-- Locks: none. Idempotent: reads only. Cost: O(splits), of few topics.
CREATE OR REPLACE FUNCTION quiet_splits(p_limit int)
RETURNS TABLE (topic_id uuid, parent_key bigint, child_key bigint, last_moved_ms bigint, high_watermark bigint)
LANGUAGE sql STABLE AS $$
    SELECT s.topic_id, s.parent_key, s.child_key, s.last_moved_ms, h.high_watermark
      FROM partition_splits s
     CROSS JOIN LATERAL (SELECT max(high_watermark) AS high_watermark FROM partition_heads
                          WHERE partition_key = s.parent_key) AS h
     WHERE s.boundary IS NULL AND wall_ms() - s.last_moved_ms >= s.boundary_quiet_ms AND NOT awaits_bulk_write(s.parent_key)
     ORDER BY s.last_moved_ms, s.parent_key LIMIT p_limit
$$;

-- Set the boundary of a split as quiet_splits found it, with the record that says so. False, and nothing happened, when
-- a key that moved has come meanwhile, a decided bulk write will append to the parent, or the log has moved on; NULL for a stale controller epoch.
-- Groups that began in the parent since the doubling get an offset in the child too, where that began: what came to it
-- since then is newer than their beginning.
-- Locks: controller (shared), metadata_head, the split's row. Idempotent. Cost: one row each, and one per such group.
CREATE OR REPLACE FUNCTION set_split_boundary(
    p_controller_epoch bigint, p_expected_head bigint, p_record bytea, p_parent_key bigint, p_last_moved_ms bigint,
    p_boundary bigint
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_child bigint;
    v_start bigint;
BEGIN
    IF NOT is_controller(p_controller_epoch) THEN
        RETURN NULL;
    END IF;
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    UPDATE partition_splits SET boundary = p_boundary
     WHERE parent_key = p_parent_key AND last_moved_ms = p_last_moved_ms AND boundary IS NULL
       AND NOT awaits_bulk_write(p_parent_key)
    RETURNING child_key, child_start INTO v_child, v_start;
    IF v_child IS NULL THEN
        RETURN false;
    END IF;
    PERFORM append_metadata(p_expected_head, ARRAY[p_record]);
    INSERT INTO group_offsets (group_id, partition_key, committed_offset, leader_epoch, metadata, committed_at)
    SELECT group_id, v_child, v_start, -1, '', wall_time() FROM group_offsets WHERE partition_key = p_parent_key
    ON CONFLICT (group_id, partition_key) DO NOTHING;
    RETURN true;
END $$;

-- Whether a decided bulk write will append to a partition.
-- Locks: none; none is decided for it any more (decide_bulk_write). Idempotent: reads only. Cost: the chunks of unfinished
-- writes.
CREATE OR REPLACE FUNCTION awaits_bulk_write(p_key bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM bulk_write_chunks c JOIN bulk_writes w USING (attempt)
                    WHERE c.chunk >= w.next_chunk AND p_key = ANY (c.run_key))
$$;
