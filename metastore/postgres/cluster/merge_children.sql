-- A topic that halves: one row per child, and NULL for a topic that does not (metastore.api.halvings.HalvingPair).
-- A group that is not excluded counts if it committed an offset in the child, or is a share group that began there; what is
-- before the log start counts as read.
-- p_names: so many groups with a lag are named.
-- Locks: none. Idempotent: reads only. Cost: O(children), a row per group and child.
CREATE OR REPLACE FUNCTION halving_pairs(p_topic_id uuid, p_names int)
RETURNS TABLE (
    partition_count int, now_ms bigint, shown_ms bigint, lag_most bigint, pause_most_ms bigint, pause_again_ms bigint,
    show_after_ms bigint, settle_after_ms bigint, producer_quiet_ms bigint,
    child_key bigint, parent_key bigint, phase smallint, since_ms bigint, high_watermark bigint, lag bigint,
    behind text[]
)
LANGUAGE sql STABLE AS $$
    SELECT h.partition_count, wall_ms(), h.shown_ms, h.lag_most, h.pause_most_ms, h.pause_again_ms, h.show_after_ms,
           h.settle_after_ms, m.producer_quiet_ms, m.child_key, m.parent_key, m.phase, m.since_ms, e.high_watermark,
           g.lag, g.behind
      FROM topic_halvings h
      JOIN partition_merges m ON m.topic_id = h.topic_id AND m.phase <> merge_settled()
      JOIN partitions p ON p.partition_key = m.child_key
     CROSS JOIN LATERAL (SELECT max(high_watermark) AS high_watermark FROM partition_heads
                          WHERE partition_key = m.child_key) AS e
     CROSS JOIN LATERAL (SELECT coalesce(max(lag), 0) AS lag,
                                coalesce((array_agg(group_id ORDER BY lag DESC, group_id) FILTER (WHERE lag > 0))[:p_names],
                                         '{}') AS behind
                           FROM child_lags(m.child_key, e.high_watermark, h.excluded_groups)) AS g
     WHERE h.topic_id = p_topic_id
     ORDER BY m.child_key
$$;

-- How many records of a child each group that counts has not committed; of a share group, those from its start on, also
-- if some of them are done.
-- Locks: none. Idempotent: reads only. Cost: a row per group.
CREATE OR REPLACE FUNCTION child_lags(p_child_key bigint, p_end bigint, p_excluded text[])
RETURNS TABLE (group_id text, lag bigint)
LANGUAGE sql STABLE AS $$
    SELECT r.group_id, p_end - greatest(r.read_to, p.log_start_offset)
      FROM (SELECT group_id, committed_offset AS read_to FROM group_offsets WHERE partition_key = p_child_key
             UNION ALL
            SELECT group_id, start_offset FROM share_partitions WHERE partition_key = p_child_key) AS r
     CROSS JOIN partitions p
     WHERE p.partition_key = p_child_key AND r.group_id <> ALL (p_excluded)
$$;

-- Those of the children that were in one phase, which are in another one now. All of them are locked.
-- Locks: the children's rows; their commit shards. Cost: one row per child.
CREATE OR REPLACE FUNCTION locked_in_phase(p_child_keys bigint[], p_from smallint, p_to smallint) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_children bigint[];
BEGIN
    PERFORM lock_children(p_child_keys);
    WITH changed AS (
        UPDATE partition_merges SET phase = p_to, since_ms = wall_ms()
         WHERE child_key = ANY (p_child_keys) AND phase = p_from
        RETURNING child_key
    )
    SELECT array_agg(child_key) INTO v_children FROM changed;
    RETURN v_children;
END $$;

-- Pause children that drain: until pause_most_ms are over, batches for them are sent back. Returns how many are paused;
-- NULL for a stale controller epoch.
-- Locks: controller (shared); the children's rows; their commit shards, so no commit to them is under way afterwards.
-- Idempotent: a child that is paused stays as it is. Cost: two rows per child.
CREATE OR REPLACE FUNCTION pause_children(p_controller_epoch bigint, p_child_keys bigint[]) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_children bigint[];
BEGIN
    IF NOT is_controller(p_controller_epoch) THEN
        RETURN NULL;
    END IF;
    v_children := locked_in_phase(p_child_keys, merge_draining(), merge_paused());
    UPDATE partitions SET state = state_paused() WHERE partition_key = ANY (v_children);
    RETURN coalesce(cardinality(v_children), 0);
END $$;

-- Undo the pause of children. Returns how many drain again; NULL for a stale controller epoch.
-- Locks, idempotent, cost: as pause_children.
CREATE OR REPLACE FUNCTION resume_children(p_controller_epoch bigint, p_child_keys bigint[]) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_children bigint[];
BEGIN
    IF NOT is_controller(p_controller_epoch) THEN
        RETURN NULL;
    END IF;
    v_children := locked_in_phase(p_child_keys, merge_paused(), merge_draining());
    PERFORM open_children(v_children);
    RETURN coalesce(cardinality(v_children), 0);
END $$;

-- Make paused children aliases of their parents. False, and nothing happened, when one is not paused, when a group has
-- not committed all of it, when an open transaction has records in it (its end is yet to come), when a decided bulk write
-- will append to it, or when the log has moved on; NULL for a stale
-- controller epoch. A child that was opened again by the time of its pause may be merged all the same: what counts is
-- that no commit runs, and that the groups have committed its end.
-- The aliases of a child go to its parent.
-- Locks: controller (shared), metadata_head; the rows of children and parents; their commit shards.
-- Idempotent: a repeated call finds the head moved and does nothing.
-- Cost: a few rows per child, one per group and producer.
CREATE OR REPLACE FUNCTION merge_children(
    p_controller_epoch bigint, p_expected_head bigint, p_records bytea[], p_topic_id uuid, p_child_keys bigint[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_parents  bigint[];
    v_excluded text[];
BEGIN
    IF NOT is_controller(p_controller_epoch) THEN
        RETURN NULL;
    END IF;
    IF lock_metadata_head() <> p_expected_head THEN
        RETURN false;
    END IF;
    SELECT excluded_groups INTO STRICT v_excluded FROM topic_halvings WHERE topic_id = p_topic_id;
    v_parents := array(SELECT parent_key FROM partition_merges WHERE child_key = ANY (p_child_keys));
    PERFORM lock_children(p_child_keys || v_parents);
    IF (SELECT count(*) FROM partition_merges WHERE child_key = ANY (p_child_keys) AND phase = merge_paused())
           < cardinality(p_child_keys)
       OR EXISTS (SELECT FROM unnest(p_child_keys) AS child
                   CROSS JOIN LATERAL (SELECT max(high_watermark) AS high_watermark FROM partition_heads
                                        WHERE partition_key = child) AS e
                   CROSS JOIN LATERAL child_lags(child, e.high_watermark, v_excluded) AS g
                   WHERE g.lag > 0)
       OR EXISTS (SELECT FROM bulk_write_chunks c JOIN bulk_writes w USING (attempt)
                   WHERE c.chunk >= w.next_chunk AND c.run_key && p_child_keys)
       OR EXISTS (SELECT FROM transaction_partitions
                   WHERE partition_key = ANY (p_child_keys) AND first_offset IS NOT NULL) THEN
        RETURN false;
    END IF;
    PERFORM append_metadata(p_expected_head, p_records);
    -- who added a child, and has sent nothing to it yet, has added its parent
    UPDATE transactions SET version = version + 1
     WHERE producer_id IN (SELECT producer_id FROM transaction_partitions WHERE partition_key = ANY (p_child_keys));
    INSERT INTO transaction_partitions (producer_id, partition_key)
    SELECT t.producer_id, m.parent_key
      FROM transaction_partitions t JOIN partition_merges m ON m.child_key = t.partition_key
     WHERE t.partition_key = ANY (p_child_keys)
     ORDER BY 1, 2
    ON CONFLICT DO NOTHING;
    UPDATE partition_merges a SET parent_key = m.parent_key
      FROM partition_merges m WHERE m.child_key = ANY (p_child_keys) AND a.parent_key = m.child_key;
    UPDATE partition_merges SET phase = merge_merged(), since_ms = wall_ms() WHERE child_key = ANY (p_child_keys);
    UPDATE partitions SET state = CASE WHEN partition_key = ANY (p_child_keys) THEN state_alias() ELSE state_merges() END
     WHERE partition_key = ANY (p_child_keys || v_parents);
    DELETE FROM split_producers WHERE parent_key = ANY (v_parents);
    DELETE FROM partition_splits WHERE parent_key = ANY (v_parents);
    RETURN true;
END $$;

-- Lock partitions and their commit shards until the transaction ends.
-- Locks: the partitions' rows, ascending; their commit shards. Idempotent. Cost: a row per partition.
CREATE OR REPLACE FUNCTION lock_children(p_keys bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM partitions WHERE partition_key = ANY (p_keys) ORDER BY partition_key FOR NO KEY UPDATE;
    PERFORM lock_shards(array_agg(DISTINCT shard)) FROM partitions WHERE partition_key = ANY (p_keys);
END $$;

-- Let children that were paused take records again, as before.
-- Locks: the caller holds those of lock_children. Idempotent. Cost: a row per child.
CREATE OR REPLACE FUNCTION open_children(p_keys bigint[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE partitions p
       SET state = CASE WHEN EXISTS (SELECT FROM partition_splits WHERE child_key = p.partition_key)
                        THEN state_is_child() ELSE state_takes_records() END
     WHERE partition_key = ANY (p_keys) AND state = state_paused()
$$;
