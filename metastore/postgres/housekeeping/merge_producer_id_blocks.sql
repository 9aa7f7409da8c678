-- Join old blocks of producer ids that follow each other into one row: of the first p_limit blocks, those that are
-- older than the cluster's producer.id.expiration.ms. Returns how many rows went: none while the cluster has no value.
-- The row gets the newest of their lease times, so that no id counts as older than before (state_may_have_expired),
-- also if the expiration becomes longer; with the expiration of today every id in it counts as old, as before.
-- Blocks with a gap between them stay apart: an id in it was never leased.
-- Locks: advisory (producer_id_lock(), 0), tried only: a lease of new ids comes first. Idempotent: repeating continues.
-- Cost: O(p_limit), through the primary key.
CREATE OR REPLACE FUNCTION merge_producer_id_blocks(p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
DECLARE
    v_before numeric := wall_ms() - producer_id_block_ms() - cluster_setting('producer.id.expiration.ms')::numeric;
    v_gone   int;
BEGIN
    IF v_before IS NULL OR NOT pg_try_advisory_xact_lock(producer_id_lock(), 0) THEN
        RETURN 0;
    END IF;
    WITH old AS (
        SELECT first_id, last_id, leased_at,
               count(*) FILTER (WHERE follows IS NOT true) OVER (ORDER BY first_id) AS run
          FROM (SELECT first_id, last_id, leased_at, first_id = lag(last_id) OVER (ORDER BY first_id) + 1 AS follows
                  FROM (SELECT * FROM producer_id_blocks ORDER BY first_id LIMIT p_limit) AS first_blocks
                 WHERE to_ms(leased_at) < v_before) AS b
    ), joined AS (
        SELECT min(first_id) AS first_id, max(last_id) AS last_id, max(leased_at) AS leased_at
          FROM old GROUP BY run HAVING count(*) > 1
    ), gone AS (
        DELETE FROM producer_id_blocks b USING joined j
         WHERE b.first_id > j.first_id AND b.first_id <= j.last_id
        RETURNING 1
    ), kept AS (
        UPDATE producer_id_blocks b SET last_id = j.last_id, leased_at = j.leased_at
          FROM joined j WHERE b.first_id = j.first_id
    )
    SELECT count(*) INTO v_gone FROM gone;
    RETURN v_gone;
END $$;
