-- Append the records of changed counts and write their projection, unless the log has moved on: then false, and nothing
-- happened. What changes is planned from the image at p_expected_head (metastore/partitions/changes.py).
-- An index that is used again continues at the high watermark of its removed partition; an alias is a partition again,
-- with the log that it had. A topic with aliases only doubles.
-- A topic does not grow while a decided bulk write will append to it.
-- What a doubling remembers of the topics goes; it must have its boundaries.
-- Locks: metadata_head; the changed partitions' rows, ascending; last, for no longer than it takes to end, the topics'
-- commit shards, and the rows of a doubling: a commit judges by the counts, epochs and states of before or of after,
-- never of both.
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
    IF EXISTS (SELECT FROM topic_halvings WHERE topic_id = ANY (p_topic_ids)) THEN
        RAISE EXCEPTION 'a topic halves: topic_ids=%', p_topic_ids;
    END IF;
    PERFORM append_metadata(p_expected_head, p_records);
    PERFORM FROM partitions WHERE topic_id = ANY (p_topic_ids) ORDER BY partition_key FOR NO KEY UPDATE;
    PERFORM assert_no_bulk_writes(array(SELECT g.topic_id FROM unnest(p_topic_ids, p_counts) AS g (topic_id, count)
                                          JOIN topics t USING (topic_id)
                                         WHERE g.count > t.undeleted_partition_count));
    PERFORM forget_announced_counts(p_topic_ids);
    UPDATE partitions SET state = state_takes_records()
     WHERE topic_id = ANY (p_topic_ids) AND state IN (state_splits(), state_is_child());
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
               coalesce(r.high_watermark, 0) AS high_watermark, m.child_key IS NOT NULL AS was_alias
          FROM unnest(p_created_topics, p_created_indexes, p_created_epochs) AS n (topic_id, index, epoch)
          JOIN topics t USING (topic_id)
          LEFT JOIN removed_partitions r ON r.partition_key = t.topic_number << 24 | n.index
          LEFT JOIN partition_merges m ON m.child_key = t.topic_number << 24 | n.index
    ), returned AS (
        UPDATE partitions p SET leader_epoch = c.epoch, state = state_takes_records()
          FROM created c WHERE p.partition_key = c.key AND c.was_alias
    ), parted AS (
        DELETE FROM partition_merges m USING created c WHERE m.child_key = c.key
    ), added AS (
        INSERT INTO partitions (partition_key, topic_id, partition_index, shard, leader_epoch, log_start_offset,
                                extents_from, created_at)
        SELECT key, topic_id, index, commit_shard(key, c.commit_shards), epoch, high_watermark, high_watermark,
               wall_time()
          FROM created, cluster c WHERE NOT was_alias
    )
    INSERT INTO partition_heads (partition_key, high_watermark)
    SELECT key, high_watermark FROM created WHERE NOT was_alias;
    UPDATE partition_merges m
       SET parent_key = (m.child_key >> 24 << 24) + (m.child_key & 16777215) % g.count
      FROM unnest(p_topic_ids, p_counts) AS g (topic_id, count)
     WHERE m.topic_id = g.topic_id AND m.child_key & 16777215 >= g.count;
    UPDATE topics t SET initial_partition_count = g.initial, undeleted_partition_count = g.count
      FROM unnest(p_topic_ids, p_initials, p_counts) AS g (topic_id, initial, count)
     WHERE t.topic_id = g.topic_id;
    -- no other session sees any of it yet: the locks only keep this transaction from ending in the middle of a commit
    PERFORM lock_shards(array_agg(DISTINCT shard)) FROM partitions WHERE topic_id = ANY (p_topic_ids);
    IF EXISTS (SELECT FROM partition_splits WHERE topic_id = ANY (p_topic_ids) AND boundary IS NULL) THEN
        RAISE EXCEPTION 'the last doubling is not over: topic_ids=%', p_topic_ids;
    END IF;
    DELETE FROM split_producers
     WHERE parent_key IN (SELECT parent_key FROM partition_splits WHERE topic_id = ANY (p_topic_ids));
    DELETE FROM partition_splits WHERE topic_id = ANY (p_topic_ids);
    RETURN true;
END $$;
