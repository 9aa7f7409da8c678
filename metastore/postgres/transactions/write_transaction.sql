-- Store what metastore/transactions.py decided on the row of p_version (0: there was none), without an end of a
-- transaction: a new producer, or more partitions and groups. False, and nothing happened, if the row has changed.
-- An alias is added as its parent, to which its batches are appended (decisions/0052).
-- HR004, and nothing happened, if one of p_keys is no partition: its topic was deleted, and the caller does not know yet.
-- A transaction begins when the state becomes transaction_ongoing().
-- Locks: the transaction's row. Idempotent: a repeated call finds another version.
-- Cost: one upsert, a probe and an insert per partition.
CREATE OR REPLACE FUNCTION write_transaction(
    p_transactional_id text, p_version bigint, p_producer_id bigint, p_producer_epoch smallint, p_state smallint,
    p_timeout_ms int, p_previous_producer_id bigint, p_previous_epoch smallint, p_groups text[], p_keys bigint[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF EXISTS (SELECT FROM unnest(p_keys) AS key WHERE NOT EXISTS (SELECT FROM partitions WHERE partition_key = key)) THEN
        RAISE EXCEPTION 'a partition is not there: partition_keys=%', p_keys USING ERRCODE = 'HR004';
    END IF;
    IF p_version = 0 THEN
        INSERT INTO transactions (transactional_id, producer_id, producer_epoch, state, timeout_ms,
                                  previous_producer_id, previous_epoch, groups, version, changed_at)
        VALUES (p_transactional_id, p_producer_id, p_producer_epoch, p_state, p_timeout_ms, p_previous_producer_id,
                p_previous_epoch, p_groups, 1, wall_time())
        ON CONFLICT (transactional_id) DO NOTHING;
    ELSE
        UPDATE transactions
           SET producer_id = p_producer_id, producer_epoch = p_producer_epoch, state = p_state,
               timeout_ms = p_timeout_ms, previous_producer_id = p_previous_producer_id,
               previous_epoch = p_previous_epoch, groups = p_groups, version = version + 1, changed_at = wall_time(),
               begun_at = CASE WHEN p_state = transaction_ongoing() THEN coalesce(begun_at, wall_time()) END
         WHERE transactional_id = p_transactional_id AND version = p_version;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO transaction_partitions (producer_id, partition_key)
    SELECT p_producer_id, coalesce(m.parent_key, key)
      FROM unnest(p_keys) AS key
      LEFT JOIN partition_merges m ON m.child_key = key AND m.phase IN (merge_merged(), merge_settled())
     ORDER BY 2
    ON CONFLICT DO NOTHING;
    RETURN true;
END $$;
