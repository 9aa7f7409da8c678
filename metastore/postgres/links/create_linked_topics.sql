-- Append new topics' records as create_topics does, and make their partitions linked ones, with the leader epoch that their
-- records have. False if the log has moved on, NULL for a stale controller epoch: then nothing happened.
-- From then on this cluster's new producer ids are apart from those of sources (keep_producer_ids_apart).
-- Locks: controller, shared; then as create_topics. Idempotent: a repeated call finds the head moved.
-- Cost: as create_topics, and two rows per topic and one per partition.
CREATE OR REPLACE FUNCTION create_linked_topics(
    p_controller_epoch  bigint,
    p_expected_head     bigint,
    p_records           bytea[],
    p_topic_ids         uuid[],    -- one element per topic in each of these seven
    p_topic_numbers     bigint[],
    p_names             text[],
    p_counts            int[],
    p_links             text[],
    p_source_ids        uuid[],
    p_leader_epochs     int[],
    p_config_topics     text[],    -- one element per setting in each of these three
    p_config_names      text[],
    p_config_values     text[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT is_controller(p_controller_epoch) THEN
        RETURN NULL;
    ELSIF NOT create_topics(p_expected_head, p_records, p_topic_ids, p_topic_numbers, p_names, p_counts,
                            p_config_topics, p_config_names, p_config_values) THEN
        RETURN false;
    END IF;
    PERFORM keep_producer_ids_apart();
    INSERT INTO linked_topics (topic_id, link, source_id, promotion, configs)
    SELECT topic_id, link, source_id, promotion_none(),
           (SELECT coalesce(jsonb_object_agg(c.name, c.value), '{}')
              FROM unnest(p_config_topics, p_config_names, p_config_values) AS c (topic, name, value)
             WHERE c.topic = t.topic AND c.name <> 'link.name')
      FROM unnest(p_topic_ids, p_names, p_links, p_source_ids) AS t (topic_id, topic, link, source_id);
    PERFORM make_linked(p_topic_ids, p_leader_epochs);
    RETURN true;
END $$;

-- Append partitions' records to linked topics as create_partitions does, with the leader epoch that the records have.
-- False, NULL: as create_linked_topics.
-- Locks: controller, shared; then as create_partitions. Idempotent: a repeated call finds the head moved.
-- Cost: as create_partitions, and a row per partition.
CREATE OR REPLACE FUNCTION grow_linked_topics(
    p_controller_epoch  bigint,
    p_expected_head     bigint,
    p_records           bytea[],
    p_topic_ids         uuid[],    -- one element per topic in each of these four
    p_first_indexes     int[],
    p_counts            int[],
    p_leader_epochs     int[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT is_controller(p_controller_epoch) THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM unnest(p_topic_ids) AS id WHERE id NOT IN (SELECT topic_id FROM linked_topics)) THEN
        RETURN false;
    END IF;
    IF NOT create_partitions(p_expected_head, p_records, p_topic_ids, p_first_indexes, p_counts) THEN
        RETURN false;
    END IF;
    PERFORM make_linked(p_topic_ids, p_leader_epochs);
    RETURN true;
END $$;

-- Partitions of these topics that take records become linked ones; no other session sees them yet.
-- Locks: the partitions' rows. Idempotent: yes. Cost: an update and a row per partition.
CREATE OR REPLACE FUNCTION make_linked(p_topic_ids uuid[], p_leader_epochs int[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    WITH made AS (
        UPDATE partitions p SET state = state_linked(), leader_epoch = t.leader_epoch
          FROM unnest(p_topic_ids, p_leader_epochs) AS t (topic_id, leader_epoch)
         WHERE p.topic_id = t.topic_id AND p.state = state_takes_records()
        RETURNING p.partition_key, p.topic_id
    )
    INSERT INTO linked_partitions (partition_key, topic_id) SELECT partition_key, topic_id FROM made
$$;
