-- Whether a producer continues in a partition where it ended in the same partition of a deleted topic of this name
-- (docs/decisions/0012). Asked only for a producer that the partition does not know and that does not start at 0.
-- True for exactly one sequence, the next one after the newest of these topics that the producer wrote to, in the epoch
-- that it had there; and for a batch that it sends again because the answer was lost: one of the ring, as a whole.
-- Of one name, the 10 topics with the highest numbers count, if they were deleted within the expiration.
-- p_range: the first and last sequence of the batch, as a ring entry begins.
-- Locks: none; the caller holds the shard's lock, and nothing changes the state of a deleted partition but its end.
-- Idempotent: reads only. Cost: an index probe for each of these topics, at most 10, and three more.
CREATE OR REPLACE FUNCTION goes_on_after_deletion(
    p_key bigint, p_producer_id bigint, p_epoch smallint, p_sequence int, p_range bytea, p_expiration_ms bigint
) RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
BEGIN
    RETURN coalesce((
        SELECT s.epoch = p_epoch AND (s.next_sequence = p_sequence OR ring_place(s.ring, p_range) >= 0)
          FROM topics t
         CROSS JOIN LATERAL (SELECT topic_number << 24 | (p_key & 16777215) AS key
                               FROM deleted_topics
                              WHERE name = t.name AND to_ms(deleted_at) > wall_ms() - p_expiration_ms
                              ORDER BY topic_number DESC LIMIT 10) AS d
         CROSS JOIN LATERAL (SELECT epoch, next_sequence, ring FROM producer_state
                              WHERE partition_key = d.key AND producer_id = p_producer_id
                              ORDER BY update_block DESC LIMIT 1) AS s
         WHERE t.topic_number = p_key >> 24
         ORDER BY d.key DESC LIMIT 1
    ), false);
END $$;
