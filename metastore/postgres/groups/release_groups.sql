-- Release groups, so that other agents may claim them; forget those with nothing in them.
-- Locks: the groups' rows, ascending. Idempotent: yes; where the epoch is stale nothing happens.
-- Cost: one row per group.
CREATE OR REPLACE FUNCTION release_groups(p_group_ids text[], p_coordinator_epochs bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_released  text[];
BEGIN
    v_released := array(
        SELECT g.group_id
          FROM unnest(p_group_ids, p_coordinator_epochs) AS r (group_id, coordinator_epoch)
          JOIN consumer_groups g USING (group_id, coordinator_epoch)
         ORDER BY g.group_id FOR UPDATE OF g);
    UPDATE consumer_groups SET node_id = -1, broker_epoch = -1 WHERE group_id = ANY (v_released);
    PERFORM forget_empty_groups(v_released);
END $$;

-- The caller has locked these groups' rows. Remove those without members, offsets (also pending ones) and live
-- holder. A share group stays until it is deleted, as in Kafka: it has no offsets, and does not expire.
CREATE OR REPLACE FUNCTION forget_empty_groups(p_group_ids text[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    DELETE FROM consumer_groups g
     WHERE g.group_id = ANY (p_group_ids) AND g.state = 'Empty'
       AND NOT is_live_agent(g.node_id, g.broker_epoch)
       AND NOT EXISTS (SELECT FROM group_offsets o WHERE o.group_id = g.group_id)
       AND NOT EXISTS (SELECT FROM pending_offsets o WHERE o.group_id = g.group_id)
       AND (g.saved = '' OR g.kind <> 'share')
       AND NOT EXISTS (SELECT FROM share_partitions s WHERE s.group_id = g.group_id)
$$;
