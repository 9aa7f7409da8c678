-- Append new topics' records and write their projection, unless the log has moved on: then false,
-- and nothing happened.
-- Locks: metadata_head. Idempotent: a repeated call finds the head moved and does nothing.
-- Cost: one row per record and three per partition.
CREATE OR REPLACE FUNCTION create_topics(
    p_expected_head   bigint,
    p_records         bytea[],
    p_topic_ids       uuid[],
    p_topic_numbers   bigint[],   -- offsets of the topics' TopicRecords
    p_names           text[],
    p_counts          int[],
    p_config_topics   text[],     -- one element per setting in each of the last three
    p_config_names    text[],
    p_config_values   text[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    PERFORM append_metadata(p_expected_head, p_records);

    INSERT INTO topics (topic_id, topic_number, name, initial_partition_count, undeleted_partition_count)
    SELECT t.topic_id, t.topic_number, t.name, t.partition_count, t.partition_count
      FROM unnest(p_topic_ids, p_topic_numbers, p_names, p_counts) AS t (topic_id, topic_number, name, partition_count);

    INSERT INTO partitions (partition_key, topic_id, partition_index, shard, leader_epoch, created_at)
    SELECT t.topic_number << 24 | i, t.topic_id, i, commit_shard(t.topic_number << 24 | i, c.commit_shards),
           life_floor32(c.life), wall_time()
      FROM cluster c,
           unnest(p_topic_ids, p_topic_numbers, p_counts) AS t (topic_id, topic_number, partition_count),
           generate_series(0, t.partition_count - 1) AS i;

    INSERT INTO partition_heads (partition_key, high_watermark)
    SELECT t.topic_number << 24 | i, 0
      FROM unnest(p_topic_numbers, p_counts) AS t (topic_number, partition_count),
           generate_series(0, t.partition_count - 1) AS i;

    INSERT INTO configs (resource_type, resource_name, name, value)
    SELECT topic_resource(), c.topic, c.name, c.value
      FROM unnest(p_config_topics, p_config_names, p_config_values) AS c (topic, name, value);
    RETURN true;
END $$;
