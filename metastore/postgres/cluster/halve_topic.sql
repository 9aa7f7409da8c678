-- Begin to halve a topic: each child of the last doubling of its count drains (metastore/partitions/merging.py). False,
-- and nothing happened, when the log has moved on. Nothing changes for clients yet.
-- Locks: metadata_head. Idempotent: a repeated call finds the head moved and does nothing. Cost: a row per child.
CREATE OR REPLACE FUNCTION begin_halving(
    p_expected_head      bigint,
    p_records            bytea[],
    p_topic_id           uuid,
    p_count              int,       -- after it
    p_excluded_groups    text[],
    p_lag_most           bigint,
    p_pause_most_ms      bigint,
    p_pause_again_ms     bigint,
    p_show_after_ms      bigint,
    p_settle_after_ms    bigint,
    p_producer_quiet_ms  bigint
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    IF metadata_format() < 4 THEN
        RAISE EXCEPTION 'metadata.format is too low for these records: wanted=4 active=%', metadata_format();
    END IF;
    IF EXISTS (SELECT FROM topics WHERE topic_id = p_topic_id AND undeleted_partition_count <> 2 * p_count)
       OR EXISTS (SELECT FROM partitions WHERE topic_id = p_topic_id AND state = state_marked())
       OR EXISTS (SELECT FROM partition_splits WHERE topic_id = p_topic_id AND boundary IS NULL) THEN
        RAISE EXCEPTION 'the topic is not as planned: topic_id=%', p_topic_id;
    END IF;
    INSERT INTO topic_halvings (topic_id, partition_count, excluded_groups, lag_most, pause_most_ms, pause_again_ms,
                                show_after_ms, settle_after_ms, begun_ms)
    VALUES (p_topic_id, p_count, p_excluded_groups, p_lag_most, p_pause_most_ms, p_pause_again_ms, p_show_after_ms,
            p_settle_after_ms, wall_ms());
    INSERT INTO partition_merges (child_key, parent_key, topic_id, phase, since_ms, pause_most_ms, producer_quiet_ms)
    SELECT partition_key, partition_key - p_count, topic_id, merge_draining(), 0, p_pause_most_ms, p_producer_quiet_ms
      FROM partitions
     WHERE topic_id = p_topic_id AND partition_index BETWEEN p_count AND 2 * p_count - 1;
    PERFORM append_metadata(p_expected_head, p_records);
    RETURN true;
END $$;

-- Give a halving up, as long as no child is merged. False, and nothing happened, when the log has moved on, or one is.
-- Locks: metadata_head; the children's rows; their commit shards. Idempotent: as begin_halving. Cost: a row per child.
CREATE OR REPLACE FUNCTION cancel_halving(p_expected_head bigint, p_records bytea[], p_topic_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_children bigint[];
BEGIN
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    v_children := array(SELECT child_key FROM partition_merges
                         WHERE topic_id = p_topic_id AND phase IN (merge_draining(), merge_paused()));
    PERFORM lock_children(v_children);
    IF EXISTS (SELECT FROM partition_merges WHERE topic_id = p_topic_id AND phase = merge_merged()) THEN
        RETURN false;
    END IF;
    PERFORM open_children(v_children);
    DELETE FROM partition_merges WHERE child_key = ANY (v_children);
    DELETE FROM topic_halvings WHERE topic_id = p_topic_id;
    PERFORM append_metadata(p_expected_head, p_records);
    RETURN true;
END $$;

-- Show the lower count, when all children are aliases for long enough. False, and nothing happened, when they are not or
-- the log has moved on; NULL for a stale controller epoch. Leader epochs rise, but those of aliases.
-- Locks: controller (shared), metadata_head; the parents' rows; last, the commit shards of parents and children.
-- Idempotent: as begin_halving. Cost: a row per parent.
CREATE OR REPLACE FUNCTION show_halved_count(
    p_controller_epoch bigint, p_expected_head bigint, p_records bytea[], p_topic_id uuid, p_count int,
    p_raised_epochs int[]           -- of 0 to p_count - 1
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_halving topic_halvings;
    v_now_ms  bigint := wall_ms();
BEGIN
    IF NOT is_controller(p_controller_epoch) THEN
        RETURN NULL;
    END IF;
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    SELECT * INTO v_halving FROM topic_halvings WHERE topic_id = p_topic_id AND shown_ms IS NULL;
    IF NOT FOUND OR EXISTS (SELECT FROM partition_merges
                             WHERE topic_id = p_topic_id AND phase <> merge_settled()
                               AND (phase <> merge_merged() OR v_now_ms - since_ms < v_halving.show_after_ms)) THEN
        RETURN false;
    END IF;
    PERFORM append_metadata(p_expected_head, p_records);
    PERFORM FROM partitions WHERE topic_id = p_topic_id ORDER BY partition_key FOR NO KEY UPDATE;
    UPDATE partitions SET leader_epoch = p_raised_epochs[partition_index + 1]
     WHERE topic_id = p_topic_id AND partition_index < p_count;
    UPDATE topics SET undeleted_partition_count = p_count WHERE topic_id = p_topic_id;
    UPDATE topic_halvings SET shown_ms = v_now_ms WHERE topic_id = p_topic_id;
    PERFORM lock_shards(array_agg(DISTINCT shard)) FROM partitions
      WHERE topic_id = p_topic_id AND partition_index < 2 * p_count;
    RETURN true;
END $$;

-- Settle a halving, when the lower count was shown for long enough: aliases stay, and nothing else of it. False, and
-- nothing happened, when it was not or the log has moved on; NULL for a stale controller epoch.
-- Locks: controller (shared), metadata_head; the parents' rows; last, the topic's commit shards.
-- Idempotent: as begin_halving. Cost: a row per pair, one per producer.
CREATE OR REPLACE FUNCTION settle_halving(
    p_controller_epoch bigint, p_expected_head bigint, p_records bytea[], p_topic_id uuid
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT is_controller(p_controller_epoch) THEN
        RETURN NULL;
    END IF;
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    IF NOT EXISTS (SELECT FROM topic_halvings
                    WHERE topic_id = p_topic_id AND wall_ms() - shown_ms >= settle_after_ms) THEN
        RETURN false;
    END IF;
    PERFORM append_metadata(p_expected_head, p_records);
    PERFORM FROM partitions WHERE topic_id = p_topic_id ORDER BY partition_key FOR NO KEY UPDATE;
    PERFORM lock_shards(array_agg(DISTINCT shard)) FROM partitions WHERE topic_id = p_topic_id;
    UPDATE partitions SET state = state_takes_records() WHERE topic_id = p_topic_id AND state = state_merges();
    DELETE FROM merge_producers
     WHERE child_key IN (SELECT child_key FROM partition_merges WHERE topic_id = p_topic_id);
    UPDATE partition_merges SET phase = merge_settled() WHERE topic_id = p_topic_id;
    DELETE FROM topic_halvings WHERE topic_id = p_topic_id;
    RETURN true;
END $$;
