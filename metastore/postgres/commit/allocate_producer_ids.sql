-- Lease a block of producer ids that no other call ever gets; returns the first. Ids start at 1,000.
-- Once the newest block is in the second half of a life's numbers, those of each later life begin there, too: apart from
-- those of a source (keep_producer_ids_apart).
-- When a block was leased tells a commit how old a producer is at least (fold_producers.sql).
-- Locks: advisory (producer_id_lock(), 0). Idempotent: no; if the answer is lost, the block is never used.
-- Cost: one index probe, one insert.
CREATE OR REPLACE FUNCTION allocate_producer_ids(p_count int) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_first bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(producer_id_lock(), 0);
    INSERT INTO producer_id_blocks (first_id, last_id, leased_at)
    SELECT first_id, within_life('producer ids', first_id + p_count - 1, life_floor64(life + 1)),
           to_timestamp(wall_ms() / 1000.0)
      FROM (SELECT greatest(coalesce((SELECT last_id + 1 FROM producer_id_blocks ORDER BY first_id DESC LIMIT 1), 1000),
                            life_floor64(cluster_life())
                            + CASE WHEN producer_ids_are_apart() THEN life_floor64(1) / 2 ELSE 0 END) AS first_id,
                   cluster_life() AS life) AS next
    RETURNING first_id INTO v_first;
    RETURN v_first;
END $$;

-- From now on no id is leased that a source of links may have given out: ids of copied producers stay in topics after their
-- promotion, and after the link is dropped. An id in the second half of this life's numbers is used up for it.
-- Locks: advisory (producer_id_lock(), 0). Idempotent: yes. Cost: two index probes, at most one insert.
CREATE OR REPLACE FUNCTION keep_producer_ids_apart() RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_first bigint := life_floor64(cluster_life()) + life_floor64(1) / 2;
BEGIN
    PERFORM pg_advisory_xact_lock(producer_id_lock(), 0);
    IF NOT producer_ids_are_apart() THEN
        INSERT INTO producer_id_blocks (first_id, last_id, leased_at)
        VALUES (v_first, v_first, to_timestamp(wall_ms() / 1000.0));
    END IF;
END $$;

-- Whether the newest block is in the second half of its life's numbers.
-- Locks: none. Idempotent: reads only. Cost: one index probe.
CREATE OR REPLACE FUNCTION producer_ids_are_apart() RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
BEGIN
    RETURN coalesce((SELECT first_id % life_floor64(1) >= life_floor64(1) / 2 FROM producer_id_blocks
                      ORDER BY first_id DESC LIMIT 1), false);
END $$;

-- How long after its lease an id of a block may become a producer's. An agent drops a block after half of it
-- (agent/transactions/producer_requests.py): the rest is for answers on their way and for clocks of different speed.
-- Locks: none. Idempotent: a constant. Cost: none.
CREATE OR REPLACE FUNCTION producer_id_block_ms() RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 1200000;
