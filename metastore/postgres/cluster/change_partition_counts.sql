-- Append the records of changed counts and write their projection, unless the log has moved on: then false, and nothing
-- happened. What changes is planned from the image at p_expected_head (metastore/partitions/changes.py).
-- An index that is used again goes on at the high watermark of its removed partition.
-- Locks: metadata_head; the changed partitions' rows, ascending; last, for no longer than it takes to end, the topics'
-- commit shards: a commit judges by the counts, epochs and states of before or of after, never of both.
-- Idempotent: a repeated call finds the head moved and does nothing.
-- Cost: a row per partition that exists, three per new one.
CREATE OR REPLACE FUNCTION change_partition_counts(
    p_expected_head    bigint,
    p_records          bytea[],
    p_topic_ids        uuid[],      -- one element per topic in each of these three
    p_initials         int[],
    p_counts           int[],
    p_raised_topics    uuid[],      -- one element per partition with a new leader epoch in each of these four
    p_raised_indexes   int[],
    p_raised_epochs    int[],
    p_raised_states    smallint[],
    p_created_topics   uuid[],      -- one element per new partition in each of these three
    p_created_indexes  int[],
    p_created_epochs   int[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_raised int;
BEGIN
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    IF metadata_format() < 4 THEN
        RAISE EXCEPTION 'metadata.format is too low for these records: wanted=4 active=%', metadata_format();
    END IF;
    PERFORM append_metadata(p_expected_head, p_records);
    PERFORM FROM partitions WHERE topic_id = ANY (p_topic_ids) ORDER BY partition_key FOR NO KEY UPDATE;
    UPDATE partitions p SET leader_epoch = r.epoch, state = r.state
      FROM unnest(p_raised_topics, p_raised_indexes, p_raised_epochs, p_raised_states)
           AS r (topic_id, index, epoch, state)
     WHERE p.topic_id = r.topic_id AND p.partition_index = r.index AND p.leader_epoch < r.epoch
       AND p.state = state_takes_records();
    GET DIAGNOSTICS v_raised = ROW_COUNT;
    IF v_raised <> cardinality(p_raised_topics) THEN
        RAISE EXCEPTION 'partitions are not as planned: topic_ids=% raised=%', p_topic_ids, v_raised;
    END IF;

    WITH created AS MATERIALIZED (
        SELECT t.topic_number << 24 | n.index AS key, t.topic_id, n.index, n.epoch,
               coalesce(r.high_watermark, 0) AS high_watermark
          FROM unnest(p_created_topics, p_created_indexes, p_created_epochs) AS n (topic_id, index, epoch)
          JOIN topics t USING (topic_id)
          LEFT JOIN removed_partitions r ON r.partition_key = t.topic_number << 24 | n.index
    ), added AS (
        INSERT INTO partitions (partition_key, topic_id, partition_index, shard, leader_epoch, log_start_offset,
                                extents_from, created_at)
        SELECT key, topic_id, index, commit_shard(key, c.commit_shards), epoch, high_watermark, high_watermark,
               wall_time()
          FROM created, cluster c
    )
    INSERT INTO partition_heads (partition_key, high_watermark) SELECT key, high_watermark FROM created;
    UPDATE topics t SET initial_partition_count = g.initial, undeleted_partition_count = g.count
      FROM unnest(p_topic_ids, p_initials, p_counts) AS g (topic_id, initial, count)
     WHERE t.topic_id = g.topic_id;
    -- no other session sees any of it yet: the locks only keep this transaction from ending in the middle of a commit
    PERFORM lock_shards(array_agg(DISTINCT shard)) FROM partitions WHERE topic_id = ANY (p_topic_ids);
    RETURN true;
END $$;
