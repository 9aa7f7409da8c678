-- Note that linked topics are to be promoted; how many of these are linked ones.
-- Locks: the topics' rows. Idempotent: yes. Cost: an update per topic.
CREATE OR REPLACE FUNCTION ask_promotion(p_topic_ids uuid[], p_force boolean) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_count int;
BEGIN
    UPDATE linked_topics SET promotion = CASE WHEN p_force THEN promotion_forced() ELSE promotion_asked() END
     WHERE topic_id = ANY (p_topic_ids);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Make linked topics ordinary ones: from here on their partitions take records, at the leader epoch that is above all of the
-- source's, and nothing is appended by a link. False if the log has moved on, or a topic is none that is to be promoted, or lacks
-- something that the source had at the last look and is not forced; NULL for a stale controller epoch: then nothing happened.
-- p_records: those that take `link.name` from the topics' configs.
-- Locks: controller, shared; metadata_head; the partitions' rows, ascending, which append_linked holds too; last their commit
-- shards. Idempotent: a repeated call finds the head moved. Cost: two updates and a row per partition.
CREATE OR REPLACE FUNCTION promote_topics(
    p_controller_epoch bigint, p_expected_head bigint, p_topic_ids uuid[], p_names text[], p_records bytea[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_shards smallint := (SELECT commit_shards FROM cluster);
    v_keys   bigint[];
BEGIN
    IF NOT is_controller(p_controller_epoch) THEN
        RETURN NULL;
    END IF;
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    PERFORM FROM partitions WHERE topic_id = ANY (p_topic_ids) ORDER BY partition_key FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM unnest(p_topic_ids) AS id
                WHERE NOT EXISTS (SELECT FROM linked_topics t WHERE t.topic_id = id
                                     AND t.promotion <> promotion_none()))
       OR EXISTS (SELECT FROM linked_topics t
                    JOIN linked_partitions l USING (topic_id)
                   CROSS JOIN LATERAL (SELECT high_watermark FROM partition_heads h
                                        WHERE h.partition_key = l.partition_key
                                        ORDER BY update_block DESC LIMIT 1) AS h
                   WHERE t.topic_id = ANY (p_topic_ids) AND t.promotion <> promotion_forced()
                     AND l.ready_end <> h.high_watermark) THEN
        RETURN false;
    END IF;
    PERFORM append_metadata(p_expected_head, p_records);
    DELETE FROM configs
     WHERE resource_type = topic_resource() AND resource_name = ANY (p_names) AND name = 'link.name';
    UPDATE metadata_head SET configs_offset = next_offset;
    SELECT array_agg(partition_key ORDER BY partition_key) INTO v_keys FROM partitions WHERE topic_id = ANY (p_topic_ids);
    PERFORM lock_shards(array_agg(DISTINCT commit_shard(key, v_shards))) FROM unnest(v_keys) AS key;
    UPDATE partitions SET state = state_takes_records() WHERE partition_key = ANY (v_keys) AND state = state_linked();
    INSERT INTO promoted_partitions (partition_key, topic_id, link, source_id, end_offset)
    SELECT l.partition_key, l.topic_id, t.link, t.source_id, h.high_watermark
      FROM linked_partitions l
      JOIN linked_topics t USING (topic_id)
     CROSS JOIN LATERAL (SELECT high_watermark FROM partition_heads WHERE partition_key = l.partition_key
                          ORDER BY update_block DESC LIMIT 1) AS h
     WHERE l.topic_id = ANY (p_topic_ids)
     ORDER BY l.partition_key;
    DELETE FROM linked_partitions WHERE topic_id = ANY (p_topic_ids);
    DELETE FROM linked_topics WHERE topic_id = ANY (p_topic_ids);
    RETURN true;
END $$;
