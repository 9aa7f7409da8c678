-- Forget offsets that were unused for the cluster's offsets.retention.minutes, and groups in which nothing is left;
-- looks at up to p_limit offsets and as many groups, and returns how many it looked at: none while the cluster has no
-- value.
-- As Kafka counts (KIP-211): from when the group became empty; from the commit for consumers that assign
-- themselves, for topics that an active group does not consume, and wherever the commit is later.
-- What is old enough but may not go yet is met again one retention later: no pass meets it twice.
-- Locks: the groups' rows (those that another session has locked are left for later), then their offsets, ascending
-- by (partition, group).
-- Idempotent: repeating continues with the next ones. Cost: O(looked at), through the indexes on expiry_slot.
CREATE OR REPLACE FUNCTION expire_group_offsets(p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_minutes bigint := cluster_setting('offsets.retention.minutes');
    v_unused  interval := least(v_minutes, 1000000000) * interval '1 minute';
    v_slot    int := expiry_slot(wall_time() - v_unused);  -- an earlier slot is certainly older
    v_now     timestamptz;
    v_ids     text[];
    v_keys    bigint[];
    v_due     text[];
    v_locked  text[];
BEGIN
    IF v_minutes IS NULL THEN
        RETURN 0;
    END IF;
    SELECT array_agg(group_id), array_agg(partition_key) INTO v_ids, v_keys
      FROM (SELECT group_id, partition_key FROM group_offsets
             WHERE expiry_slot < v_slot ORDER BY expiry_slot LIMIT p_limit) AS old;
    v_due := array(SELECT group_id FROM consumer_groups
                    WHERE expiry_slot < v_slot ORDER BY expiry_slot LIMIT p_limit);
    v_locked := array(SELECT group_id FROM consumer_groups
                       WHERE group_id = ANY (v_ids || v_due) ORDER BY group_id FOR UPDATE SKIP LOCKED);
    PERFORM FROM group_offsets o JOIN unnest(v_ids, v_keys) AS c (group_id, partition_key) USING (group_id, partition_key)
      WHERE group_id = ANY (v_locked) ORDER BY partition_key, group_id FOR UPDATE OF o;
    v_now := wall_time();

    WITH old AS (
        SELECT o.group_id, o.partition_key,
               CASE WHEN g.state = 'Empty' THEN greatest(g.empty_since, o.committed_at)
                    WHEN t.name <> ALL (g.subscribed) THEN o.committed_at
                    ELSE v_now
               END AS unused_since
          FROM unnest(v_ids, v_keys) AS c (group_id, partition_key)
          JOIN group_offsets o USING (group_id, partition_key)
          JOIN consumer_groups g USING (group_id)
          LEFT JOIN partitions p USING (partition_key)
          LEFT JOIN topics t USING (topic_id)
         WHERE c.group_id = ANY (v_locked) AND o.expiry_slot < v_slot  -- not committed while we waited
    ), expired AS (
        DELETE FROM group_offsets o USING old
         WHERE o.group_id = old.group_id AND o.partition_key = old.partition_key
           AND old.unused_since <= v_now - v_unused
    )
    UPDATE group_offsets o SET expiry_slot = expiry_slot(old.unused_since)
      FROM old
     WHERE o.group_id = old.group_id AND o.partition_key = old.partition_key
       AND old.unused_since > v_now - v_unused;

    PERFORM forget_empty_groups(v_locked);
    UPDATE consumer_groups SET expiry_slot = expiry_slot(v_now)
     WHERE group_id = ANY (v_due) AND group_id = ANY (v_locked);
    RETURN (SELECT count(*) FROM unnest(v_ids || v_due) AS looked (group_id) WHERE looked.group_id = ANY (v_locked));
END $$;
