-- Write what a group has committed at the source of its link, as far as it may be: metastore.api.linked_groups.GroupOutcome.
-- p_answers: the question of a coordinator that was there before the source was asked.
--
-- Nothing is written once a client committed an offset in a copy, or the group has members here: a coordinator stores that it
-- has some, under the group's row, before it gives the first one an assignment (agent/groups/outbox.py). So what this writes
-- is there before a member asks for it, or is not written. A transaction that ends meanwhile wins: it does not hold the group's
-- row, so each offset is looked at again where it is written. An offset never passes the end of the copy, or of what was the copy
-- when it was promoted: what is above is of other records, or of none yet.
--
-- Locks: the job's row, shared; the linked group's row; the group's row; then the partitions' rows, shared, and the offsets
-- by partition, as commit_group_offsets. Idempotent: yes. Cost: as commit_group_offsets, and two index probes per partition.
CREATE OR REPLACE FUNCTION copy_group_offsets(
    p_job_id bigint, p_epoch bigint, p_link text, p_group_id text, p_answers bigint,
    p_keys bigint[], p_offsets bigint[], p_leader_epochs int[], p_metadata bytea[]
) RETURNS smallint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_linked   linked_groups;
    v_group    consumer_groups;
    v_is_new   boolean := false;
    v_outcome  smallint := group_copied();
    v_behind   bigint;
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    SELECT * INTO v_linked FROM linked_groups WHERE link = p_link AND group_id = p_group_id FOR UPDATE;
    IF NOT FOUND OR v_linked.refusal IS DISTINCT FROM '' THEN
        RETURN group_refused();
    END IF;
    LOOP  -- until a row is locked: the one that was there may be forgotten in between
        SELECT * INTO v_group FROM consumer_groups WHERE group_id = p_group_id FOR UPDATE;
        EXIT WHEN FOUND OR cardinality(p_keys) = 0;
        INSERT INTO consumer_groups (group_id, coordinator_epoch, node_id, saved, expiry_slot)
        VALUES (p_group_id, 0, -1, '', expiry_slot(wall_time()))
        ON CONFLICT (group_id) DO NOTHING;
        v_is_new := v_is_new OR FOUND;
    END LOOP;
    IF v_group.state <> 'Empty' OR v_group.kind = 'share' OR (v_linked.came_at IS NOT NULL AND NOT v_is_new)
       OR EXISTS (SELECT FROM group_offsets o
                   WHERE o.group_id = p_group_id AND o.partition_key = ANY (p_keys) AND o.link IS DISTINCT FROM p_link) THEN
        v_outcome := group_came();
    ELSE
        PERFORM write_copied_offsets(p_link, p_group_id, p_keys, p_offsets, p_leader_epochs, p_metadata);
    END IF;
    SELECT coalesce(sum(greatest(t.committed - coalesce(o.committed_offset, 0), 0)), 0) INTO v_behind
      FROM unnest(p_keys, p_offsets) AS t (key, committed)
      LEFT JOIN group_offsets o ON o.group_id = p_group_id AND o.partition_key = t.key;
    UPDATE linked_groups g
       SET answered = CASE WHEN v_outcome = group_came() OR v_behind = 0 THEN greatest(g.answered, p_answers)
                           ELSE g.answered END,  -- the copy lacks records that the group has read: they come
           offsets = cardinality(p_keys), behind = v_behind,
           copied_at = CASE WHEN v_outcome = group_copied() THEN wall_time() ELSE g.copied_at END,
           came_at = CASE WHEN v_outcome = group_came() THEN coalesce(g.came_at, wall_time()) END
     WHERE g.link = p_link AND g.group_id = p_group_id;
    RETURN v_outcome;
END $$;

-- Store offsets up to the ends of copies; the caller has locked the group's row, and judged that it may be written.
-- Locks: the partitions' rows, shared, then the offsets by partition. Idempotent: yes. Cost: an upsert per partition.
CREATE OR REPLACE FUNCTION write_copied_offsets(
    p_link text, p_group_id text, p_keys bigint[], p_offsets bigint[], p_leader_epochs int[], p_metadata bytea[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_known bigint[];
BEGIN
    v_known := array(SELECT partition_key FROM partitions WHERE partition_key = ANY (p_keys)
                      ORDER BY partition_key FOR KEY SHARE);
    INSERT INTO group_offsets AS g
           (group_id, partition_key, committed_offset, leader_epoch, metadata, committed_at, expiry_slot, link)
    SELECT p_group_id, o.key, least(o.committed, e.copy_end),
           CASE WHEN o.committed > e.copy_end THEN -1 ELSE o.leader_epoch END,
           o.metadata, wall_time(), expiry_slot(wall_time()), p_link
      FROM unnest(p_keys, p_offsets, p_leader_epochs, p_metadata) AS o (key, committed, leader_epoch, metadata)
     CROSS JOIN LATERAL (
        SELECT h.high_watermark AS copy_end
          FROM linked_partitions l
          JOIN linked_topics t USING (topic_id)
         CROSS JOIN LATERAL (SELECT high_watermark FROM partition_heads WHERE partition_key = l.partition_key
                              ORDER BY update_block DESC LIMIT 1) AS h
         WHERE l.partition_key = o.key AND t.link = p_link
        UNION ALL
        SELECT end_offset FROM promoted_partitions p WHERE p.partition_key = o.key AND p.link = p_link
        LIMIT 1) AS e
     WHERE o.key = ANY (v_known)
     ORDER BY o.key
    ON CONFLICT (group_id, partition_key) DO UPDATE
       SET committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
           metadata = excluded.metadata, committed_at = excluded.committed_at, expiry_slot = excluded.expiry_slot
     WHERE g.link = p_link;
END $$;
