-- Forget a group's positions in some partitions, and what a share group has done there; false when p_coordinator_epoch is
-- no longer the group's.
-- Locks: shares the group's row, then the offsets and then the share partitions, each ascending by partition.
-- Idempotent: yes. Cost: one row per partition, and one probe of the other table.
CREATE OR REPLACE FUNCTION delete_group_offsets(p_group_id text, p_coordinator_epoch bigint, p_keys bigint[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT is_group_coordinator(p_group_id, p_coordinator_epoch) THEN
        RETURN false;
    END IF;
    PERFORM FROM group_offsets WHERE group_id = p_group_id AND partition_key = ANY (p_keys)
      ORDER BY partition_key FOR UPDATE;
    DELETE FROM group_offsets WHERE group_id = p_group_id AND partition_key = ANY (p_keys);
    PERFORM FROM share_partitions WHERE group_id = p_group_id AND partition_key = ANY (p_keys)
      ORDER BY partition_key FOR UPDATE;
    DELETE FROM share_partitions WHERE group_id = p_group_id AND partition_key = ANY (p_keys);
    RETURN true;
END $$;
