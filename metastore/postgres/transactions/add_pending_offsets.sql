-- Store positions of a group that the producer's open transaction will commit, all or none. NULL when
-- p_coordinator_epoch is no longer the group's; else what was stored: the partitions that are there; '{-1}' when the
-- transaction's row is not of p_version any more, or has no open transaction with this group.
-- Locks: shares the group's row; the partitions' rows, shared; the transaction's row, shared.
-- Idempotent: yes, the same positions are written again. Cost: one upsert per partition.
CREATE OR REPLACE FUNCTION add_pending_offsets(
    p_transactional_id   text,
    p_version            bigint,
    p_group_id           text,
    p_coordinator_epoch  bigint,
    p_keys               bigint[],   -- ascending, each once
    p_offsets            bigint[],
    p_leader_epochs      int[],
    p_metadata           bytea[]
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_known    bigint[];
    v_producer bigint;
BEGIN
    IF NOT is_group_coordinator(p_group_id, p_coordinator_epoch) THEN
        RETURN NULL;
    END IF;
    v_known := array(SELECT partition_key FROM partitions WHERE partition_key = ANY (p_keys)
                      ORDER BY partition_key FOR KEY SHARE);
    v_known := v_known || array(SELECT key FROM unnest(p_keys) AS key WHERE is_rendered_key(key));
    SELECT producer_id INTO v_producer FROM transactions
     WHERE transactional_id = p_transactional_id AND version = p_version AND state = transaction_ongoing()
       AND p_group_id = ANY (groups)
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN ARRAY[-1];
    END IF;
    UPDATE transactions SET version = version + 1 WHERE transactional_id = p_transactional_id;
    INSERT INTO pending_offsets AS o
           (producer_id, group_id, partition_key, committed_offset, leader_epoch, metadata)
    SELECT v_producer, p_group_id, o.partition_key, o.committed_offset, o.leader_epoch, o.metadata
      FROM unnest(p_keys, p_offsets, p_leader_epochs, p_metadata)
           AS o (partition_key, committed_offset, leader_epoch, metadata)
     WHERE o.partition_key = ANY (v_known)
     ORDER BY o.partition_key
    ON CONFLICT (producer_id, group_id, partition_key) DO UPDATE
       SET committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
           metadata = excluded.metadata;
    RETURN v_known;
END $$;
