-- Forget up to p_most transactional ids that were unused for p_expiration_ms, and have no open transaction. How many.
-- Locks: their rows; one that another session holds is left out. Idempotent: yes. Cost: one pass over the ids.
CREATE OR REPLACE FUNCTION expire_transactional_ids(p_expiration_ms bigint, p_most int) RETURNS int
LANGUAGE sql VOLATILE AS $$
    WITH expired AS (
        SELECT transactional_id FROM transactions
         WHERE begun_at IS NULL AND to_ms(changed_at) + p_expiration_ms <= wall_ms()
         LIMIT p_most FOR UPDATE SKIP LOCKED
    ), forgotten AS (
        DELETE FROM transactions WHERE transactional_id IN (SELECT transactional_id FROM expired)
        RETURNING producer_id
    )
    SELECT count(*)::int FROM forgotten
$$;
