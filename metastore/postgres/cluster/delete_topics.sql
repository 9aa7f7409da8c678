-- Append RemoveTopicRecords and take the topics out of the projection, unless the log has moved on:
-- then false, and nothing happened. From then on no commit, look-up or fetch knows their partitions.
-- p_kept_topics, p_kept_records: one element per record, what the log says of topics as a snapshot would; those topics
-- can be restored for file.delete.delay.ms (keep_topics.sql), others cannot.
-- Locks: metadata_head, the topics' partitions' rows (a log start that moves holds them before its shard),
-- their group offsets and share partitions, ascending by (partition, group), their commit shards.
-- Idempotent: a repeated call finds the head moved and does nothing.
-- Cost: four rows deleted and one queued per partition, one noted per topic, and each deleted row kept; extents are left to
-- purge_deleted_partitions, and producer state to expire_producer_state: a topic of the same name may need it.
CREATE OR REPLACE FUNCTION delete_topics(
    p_expected_head bigint, p_topic_ids uuid[], p_records bytea[], p_kept_topics uuid[], p_kept_records bytea[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_names   text[];
    v_keys    bigint[];
    v_shards  smallint[];
BEGIN
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    PERFORM append_metadata(p_expected_head, p_records);

    -- partitions are added and deleted under the head's lock only, so what is read before the shards' locks is final
    PERFORM FROM partitions WHERE topic_id = ANY (p_topic_ids) ORDER BY partition_key FOR UPDATE;
    SELECT array_agg(partition_key), array_agg(DISTINCT shard) INTO v_keys, v_shards
      FROM partitions WHERE topic_id = ANY (p_topic_ids);
    -- any number of groups: none adds offsets while we hold the partitions' rows, and no commit waits for this
    PERFORM FROM group_offsets WHERE partition_key = ANY (v_keys) ORDER BY partition_key, group_id FOR UPDATE;
    PERFORM FROM share_partitions WHERE partition_key = ANY (v_keys) ORDER BY partition_key, group_id FOR UPDATE;
    PERFORM keep_topics(p_kept_topics, p_kept_records);
    DELETE FROM removed_partitions WHERE topic_id = ANY (p_topic_ids);
    WITH deleted AS (
        DELETE FROM topics WHERE topic_id = ANY (p_topic_ids) RETURNING topic_number, name
    ), noted AS (
        INSERT INTO deleted_topics (topic_number, name, deleted_at)
        SELECT topic_number, name, wall_time() FROM deleted
    )
    SELECT array_agg(name) INTO v_names FROM deleted;
    IF cardinality(v_names) IS DISTINCT FROM cardinality(p_topic_ids) THEN
        RAISE EXCEPTION 'a topic is not there: topic_ids=% found=%', p_topic_ids, v_names;
    END IF;
    DELETE FROM configs WHERE resource_type = topic_resource() AND resource_name = ANY (v_names);
    DELETE FROM group_offsets WHERE partition_key = ANY (v_keys);
    DELETE FROM share_partitions WHERE partition_key = ANY (v_keys);
    PERFORM lock_shards(v_shards);
    PERFORM keep_heads(p_kept_topics);
    PERFORM append_feed(d.shard, feed_topic_deleted(), d.payload)
       FROM (SELECT shard, string_agg(int8send(partition_key), ''::bytea ORDER BY partition_key) AS payload
               FROM partitions WHERE topic_id = ANY (p_topic_ids) GROUP BY shard) AS d;
    INSERT INTO deleted_partitions (partition_key, deleted_at, topic_id, partition_index, end_offset)
    SELECT p.partition_key, wall_time(), p.topic_id, p.partition_index, max(h.high_watermark)
      FROM partitions p JOIN partition_heads h USING (partition_key)
     WHERE p.partition_key = ANY (v_keys) GROUP BY p.partition_key;
    DELETE FROM partitions WHERE partition_key = ANY (v_keys);
    DELETE FROM partition_heads WHERE partition_key = ANY (v_keys);
    DELETE FROM transaction_partitions WHERE partition_key = ANY (v_keys);
    DELETE FROM pending_offsets WHERE partition_key = ANY (v_keys);
    DELETE FROM cleaned_partitions WHERE partition_key = ANY (v_keys);
    DELETE FROM split_producers WHERE parent_key = ANY (v_keys);
    DELETE FROM partition_splits WHERE topic_id = ANY (p_topic_ids);
    DELETE FROM merge_producers WHERE child_key = ANY (v_keys);
    DELETE FROM partition_merges WHERE topic_id = ANY (p_topic_ids);
    DELETE FROM topic_halvings WHERE topic_id = ANY (p_topic_ids);
    DELETE FROM linked_partitions WHERE topic_id = ANY (p_topic_ids);
    DELETE FROM linked_topics WHERE topic_id = ANY (p_topic_ids);
    DELETE FROM promoted_partitions WHERE topic_id = ANY (p_topic_ids);
    RETURN true;
END $$;
