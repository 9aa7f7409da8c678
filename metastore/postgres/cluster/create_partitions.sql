-- Append new partitions' records to topics and write their projection, unless the log has moved on: then
-- false, and nothing happened.
-- Leader epochs stay, so keys continue being placed by modulo: the new count counts as the initial one.
-- Not while a decided bulk write will append to one of them.
-- Locks: metadata_head; the topics' partitions, ascending; last, for no longer than it takes to end, the topics' commit shards: a commit compares
-- the count that its batches were partitioned by, and must not see half of this.
-- Idempotent: a repeated call finds the head moved and does nothing.
-- Cost: three rows per partition.
CREATE OR REPLACE FUNCTION create_partitions(
    p_expected_head  bigint,
    p_records        bytea[],
    p_topic_ids      uuid[],       -- one element per topic in each of these three
    p_first_indexes  int[],
    p_counts         int[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    IF EXISTS (SELECT FROM unnest(p_topic_ids, p_first_indexes) AS g (topic_id, first_index)
                WHERE g.first_index <> (SELECT count(*) FROM partitions p WHERE p.topic_id = g.topic_id)) THEN
        RAISE EXCEPTION 'partitions out of turn: topic_ids=% first_indexes=%', p_topic_ids, p_first_indexes;
    END IF;
    PERFORM FROM partitions WHERE topic_id = ANY (p_topic_ids) ORDER BY partition_key FOR NO KEY UPDATE;
    PERFORM assert_no_bulk_writes(p_topic_ids);
    PERFORM forget_announced_counts(p_topic_ids);
    PERFORM append_metadata(p_expected_head, p_records);

    INSERT INTO partitions (partition_key, topic_id, partition_index, shard, leader_epoch, created_at)
    SELECT t.topic_number << 24 | i, t.topic_id, i, commit_shard(t.topic_number << 24 | i, c.commit_shards),
           life_floor32(c.life), wall_time()
      FROM cluster c,
           unnest(p_topic_ids, p_first_indexes, p_counts) AS g (topic_id, first_index, count)
           JOIN topics t USING (topic_id),
           generate_series(g.first_index, g.count - 1) AS i;
    INSERT INTO partition_heads (partition_key, high_watermark)
    SELECT t.topic_number << 24 | i, 0
      FROM unnest(p_topic_ids, p_first_indexes, p_counts) AS g (topic_id, first_index, count)
           JOIN topics t USING (topic_id),
           generate_series(g.first_index, g.count - 1) AS i;
    UPDATE topics t SET undeleted_partition_count = g.count, initial_partition_count = g.count
      FROM unnest(p_topic_ids, p_counts) AS g (topic_id, count)
     WHERE t.topic_id = g.topic_id;
    -- no other session sees any of it yet: the locks only keep this transaction from ending in the middle of a commit
    PERFORM lock_shards(array_agg(DISTINCT shard)) FROM partitions WHERE topic_id = ANY (p_topic_ids);
    RETURN true;
END $$;
