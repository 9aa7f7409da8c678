-- Remove a group, its offsets and what a share group has done; whether there was anything of it, or NULL when p_coordinator_epoch
-- is no longer the group's.
-- Locks: the group's row, then its offsets and its share partitions, ascending by (partition, group) as all functions
-- take them.
-- Idempotent: a repeated call is refused, as its epoch is gone.
-- Cost: O(the group's offsets).
CREATE OR REPLACE FUNCTION delete_group(p_group_id text, p_coordinator_epoch bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_was_saved  boolean;
    v_had_more   boolean;
BEGIN
    DELETE FROM consumer_groups
     WHERE group_id = p_group_id AND coordinator_epoch = p_coordinator_epoch
    RETURNING saved <> '' INTO v_was_saved;
    PERFORM FROM group_offsets WHERE group_id = p_group_id AND v_was_saved IS NOT NULL
      ORDER BY partition_key FOR UPDATE;
    DELETE FROM group_offsets WHERE group_id = p_group_id AND v_was_saved IS NOT NULL;
    v_had_more := FOUND;
    PERFORM FROM share_partitions WHERE group_id = p_group_id AND v_was_saved IS NOT NULL
      ORDER BY partition_key FOR UPDATE;
    DELETE FROM share_partitions WHERE group_id = p_group_id AND v_was_saved IS NOT NULL;
    RETURN v_was_saved OR v_had_more OR FOUND;
END $$;
