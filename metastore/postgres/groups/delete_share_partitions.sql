-- Forget what a share group has done in some partitions; false when p_coordinator_epoch is no longer the group's.
-- Locks: shares the group's row, then the rows, ascending by partition.
-- Idempotent: yes. Cost: one row per partition.
CREATE OR REPLACE FUNCTION delete_share_partitions(p_group_id text, p_coordinator_epoch bigint, p_keys bigint[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT is_group_coordinator(p_group_id, p_coordinator_epoch) THEN
        RETURN false;
    END IF;
    PERFORM FROM share_partitions WHERE group_id = p_group_id AND partition_key = ANY (p_keys)
      ORDER BY partition_key FOR UPDATE;
    DELETE FROM share_partitions WHERE group_id = p_group_id AND partition_key = ANY (p_keys);
    RETURN true;
END $$;
