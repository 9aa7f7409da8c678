-- What becomes of the batches of a call because of transactions, unless they are duplicates: by batch batch_appended(),
-- batch_unknown_producer(), batch_producer_fenced() or batch_invalid_txn_state(). NULL: all may be appended.
-- A transactional batch needs the producer epoch of its transactional id, and an open transaction with its partition;
-- of kind in_any_partition() it begins the transaction or adds the partition (KIP-890). A producer with an open
-- transaction in a partition sends no other batches there.
-- p_kind: by batch, metastore.api.commit.BatchTransaction; empty if no batch is transactional.
-- Locks: the transactions that get a partition, by producer id: an end in another session sees the partition, or is seen.
-- A partition that was added is enough to see an end: it takes the partition's shard, which the caller holds.
-- Idempotent: reads only. Cost: two index probes per (partition, producer).
CREATE OR REPLACE FUNCTION judge_transactions(
    p_part_key bigint[], p_batch_part int[], p_batch_prod int[], p_batch_epoch smallint[], p_kind int[],
    p_prod_id bigint[]
) RETURNS int[]
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_verdict int[];
BEGIN
    IF in_any_partition() = ANY (p_kind) THEN
        PERFORM FROM transactions t
          WHERE producer_id IN (
                    SELECT p_prod_id[prod] FROM unnest(p_batch_prod, p_batch_part, p_kind) AS b (prod, part, kind)
                     WHERE kind = in_any_partition()
                       AND NOT EXISTS (SELECT FROM transaction_partitions
                                        WHERE producer_id = p_prod_id[prod] AND partition_key = p_part_key[part]))
          ORDER BY producer_id FOR NO KEY UPDATE;
    END IF;
    v_verdict := array(
        SELECT CASE WHEN kind = in_no_transaction() THEN
                        CASE WHEN known.first_offset IS NULL THEN batch_appended() ELSE batch_invalid_txn_state() END
                    WHEN known.producer_epoch IS NULL THEN batch_unknown_producer()
                    WHEN known.producer_epoch IS DISTINCT FROM epoch THEN batch_producer_fenced()
                    WHEN kind = in_any_partition() OR (known.state = transaction_ongoing() AND known.is_added)
                         THEN batch_appended()
                    ELSE batch_invalid_txn_state() END
          FROM (SELECT part, prod, epoch, coalesce(p_kind[i], in_no_transaction()) AS kind, i
                  FROM unnest(p_batch_part, p_batch_prod, p_batch_epoch) WITH ORDINALITY AS b (part, prod, epoch, i)) AS b
          LEFT JOIN LATERAL (
              SELECT t.producer_epoch, t.state, o.producer_id IS NOT NULL AS is_added, o.first_offset
                FROM transactions t
                LEFT JOIN transaction_partitions o
                       ON o.producer_id = t.producer_id AND o.partition_key = p_part_key[part]
               WHERE t.producer_id = p_prod_id[nullif(prod, 0)]) AS known ON true
         ORDER BY i);
    RETURN CASE WHEN batch_appended() <> ANY (v_verdict) THEN v_verdict END;
END $$;

-- Remember the transactional batches that were appended, which are those of the runs: what is open in which partition.
-- Returns by partition the first open offset from now on; NULL: none is open.
-- Locks: none; judge_transactions took them. Idempotent: no. Cost: two index probes per (partition, producer).
CREATE OR REPLACE FUNCTION note_transactions(
    p_part_key bigint[], p_part_head bigint[], p_part_open bigint[], p_batch_part int[], p_batch_prod int[],
    p_batch_before bigint[], p_kind int[], p_run_first int[], p_run_last int[], p_prod_id bigint[]
) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_parts     int[];
    v_producers bigint[];
    v_firsts    bigint[];
BEGIN
    -- where each producer began in this call, in partitions in which it had nothing before
    SELECT array_agg(part), array_agg(id), array_agg(first) INTO v_parts, v_producers, v_firsts
      FROM (SELECT p_batch_part[i] AS part, p_prod_id[p_batch_prod[i]] AS id,
                   min(p_part_head[p_batch_part[i]] + p_batch_before[i]) AS first
              FROM unnest(p_run_first, p_run_last) AS r (first, last)
             CROSS JOIN LATERAL generate_series(r.first, r.last) AS i
             WHERE p_kind[i] <> in_no_transaction()
             GROUP BY 1, 2) AS b
     WHERE NOT EXISTS (SELECT FROM transaction_partitions
                        WHERE producer_id = id AND partition_key = p_part_key[part] AND first_offset IS NOT NULL);
    UPDATE transactions t
       SET state = transaction_ongoing(), begun_at = coalesce(begun_at, wall_time()), changed_at = wall_time(),
           version = version + 1
     WHERE producer_id IN (
               SELECT id FROM unnest(v_parts, v_producers) AS n (part, id)
                WHERE NOT EXISTS (SELECT FROM transaction_partitions
                                   WHERE producer_id = id AND partition_key = p_part_key[part]));
    INSERT INTO transaction_partitions AS o (producer_id, partition_key, first_offset)
    SELECT id, p_part_key[part], first FROM unnest(v_parts, v_producers, v_firsts) AS n (part, id, first)
     ORDER BY 1, 2
    ON CONFLICT (producer_id, partition_key) DO UPDATE SET first_offset = excluded.first_offset;
    RETURN array(
        SELECT coalesce(open, (SELECT min(first) FROM unnest(v_parts, v_firsts) AS n (part, first) WHERE n.part = p.part))
          FROM unnest(p_part_key, p_part_open) WITH ORDINALITY AS p (key, open, part) ORDER BY p.part);
END $$;

-- By batch the refusal of the one or the other; NULL if both let all pass.
-- Locks: none. Idempotent: pure. Cost: O(batches).
CREATE OR REPLACE FUNCTION either_refusal(p_split int[], p_txn int[]) RETURNS int[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_txn IS NULL THEN p_split WHEN p_split IS NULL THEN p_txn ELSE array(
        SELECT CASE WHEN split <> batch_appended() THEN split ELSE txn END
          FROM unnest(p_split, p_txn) WITH ORDINALITY AS b (split, txn, i) ORDER BY i) END
$$;

-- The first open offsets of a shard's partitions, as pack_transaction_row takes them.
-- Locks: none. Idempotent: pure. Cost: O(partitions).
CREATE OR REPLACE FUNCTION pack_open_offsets(p_shard smallint, p_shards smallint, p_key bigint[], p_open bigint[])
RETURNS bytea
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(string_agg(int8send(key) || int8send(open), '' ORDER BY key), '')
      FROM unnest(p_key, p_open) AS p (key, open)
     WHERE open IS NOT NULL AND commit_shard(key, p_shards) = p_shard
$$;
