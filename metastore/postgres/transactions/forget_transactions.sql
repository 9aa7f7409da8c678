-- Abort every open transaction, under the epoch after its producer's, and forget all transactional ids: their producers
-- begin again under new producer ids. No transaction is open under 32,767 (transactions_open_epoch), and if one were,
-- this is the epoch of its markers.
-- Locks: none; the caller excludes all writing calls. Idempotent. Cost: as append_markers, per open transaction.
CREATE OR REPLACE FUNCTION forget_transactions() RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_open transactions;
BEGIN
    FOR v_open IN SELECT * FROM transactions WHERE begun_at IS NOT NULL ORDER BY producer_id LOOP
        PERFORM append_markers(v_open.producer_id, false, (least(v_open.producer_epoch, 32766) + 1)::smallint);
        DELETE FROM transaction_partitions WHERE producer_id = v_open.producer_id;
    END LOOP;
    DELETE FROM pending_offsets;
    DELETE FROM transactions;
END $$;
