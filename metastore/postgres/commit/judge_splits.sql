-- What becomes of batches for partitions that are split in two, unless they are duplicates: by batch batch_appended(),
-- batch_sent_back() or batch_moved_key(). metastore/partitions/splitting.py has the rule; batches without a producer
-- id wait for nothing, and are refused behind the boundary only.
-- All batches of a call come at one time, the parent's before the child's.
-- A client that says a count (p_batch_count >= 0) has its keys where that count puts them. Else the agent says of the
-- batch's keys keys_stay() or keys_moved(), or that it came for an alias: its keys are those of the partition. An agent
-- that does not know yet that the parent is split says nothing: keys_unknown(). p_batch_keys and p_batch_alias are empty
-- if no batch has any.
-- Locks: none; the caller holds the splits' rows (lock_splits). Idempotent: reads only.
-- Cost: two index probes per (partition, producer).
CREATE OR REPLACE FUNCTION judge_splits(
    p_now_ms bigint, p_part_key bigint[], p_batch_part int[], p_batch_prod int[], p_prod_id bigint[],
    p_batch_count int[], p_batch_keys int[], p_batch_alias int[]
) RETURNS int[]
LANGUAGE sql STABLE AS $$
    WITH batch AS MATERIALIZED (
        SELECT i, s.parent_key, p_part_key[part] = s.child_key AS for_child, count >= 0 AS has_count,
               count >= 0 OR keys = keys_stay() OR alias >= 0 AS stays,
               coalesce(keys = keys_moved(), false) AS has_moved,
               p_prod_id[nullif(prod, 0)] AS producer_id, s.boundary IS NOT NULL AS has_boundary, s.producer_quiet_ms
          FROM unnest(p_batch_part, p_batch_prod, p_batch_count, p_batch_keys, p_batch_alias)
               WITH ORDINALITY AS b (part, prod, count, keys, alias, i)
          LEFT JOIN LATERAL (SELECT * FROM split_of(p_part_key[part])) AS s ON true
    ), known AS MATERIALIZED (
        SELECT parent_key, producer_id, g.moved_ms, g.has_switched, k.comes_to_parent
          FROM (SELECT parent_key, producer_id, bool_or(has_moved AND NOT for_child) AS comes_to_parent
                  FROM batch WHERE producer_id IS NOT NULL AND parent_key IS NOT NULL GROUP BY 1, 2) AS k
          LEFT JOIN split_producers g USING (parent_key, producer_id)
    )
    SELECT coalesce(array_agg(CASE
               WHEN b.parent_key IS NULL THEN batch_appended()
               WHEN b.for_child THEN
                   CASE WHEN b.producer_id IS NULL OR b.has_boundary
                          OR b.has_count
                          OR (p_now_ms - coalesce(k.moved_ms, p_now_ms) >= b.producer_quiet_ms
                              AND NOT k.comes_to_parent)
                        THEN batch_appended() ELSE batch_sent_back() END
               WHEN b.stays THEN batch_appended()
               WHEN NOT b.has_moved THEN batch_sent_back()
               WHEN b.has_boundary OR k.has_switched THEN batch_moved_key()
               WHEN b.producer_id IS NOT NULL AND k.moved_ms IS NULL THEN batch_sent_back()
               ELSE batch_appended() END ORDER BY i), '{}')
      FROM batch b LEFT JOIN known k USING (parent_key, producer_id)
$$;

-- Keep the rows that judge_splits reads as they are until the transaction ends.
-- Locks: the partitions' splits, by parent. Idempotent. Cost: an index probe per partition.
CREATE OR REPLACE FUNCTION lock_splits(p_part_key bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM partition_splits WHERE parent_key = ANY (p_part_key) OR child_key = ANY (p_part_key)
      ORDER BY parent_key FOR NO KEY UPDATE;
END $$;

-- Remember what judge_splits said (p_verdict). p_prod_accepted: by producer, whether a batch of it was appended.
-- Duplicates count as signs of the producer: it waits longer than the rule demands.
-- Locks: none; the caller holds the splits' rows. Idempotent: a repeated call changes times only.
-- Cost: a row per (partition, producer).
CREATE OR REPLACE FUNCTION note_split_batches(
    p_now_ms bigint, p_part_key bigint[], p_batch_part int[], p_batch_prod int[], p_prod_id bigint[],
    p_batch_keys int[], p_verdict int[], p_prod_accepted boolean[]
) RETURNS void
LANGUAGE sql VOLATILE AS $$
    WITH batch AS MATERIALIZED (
        SELECT s.parent_key, p_part_key[part] = s.child_key AS for_child, p_prod_id[nullif(prod, 0)] AS producer_id,
               p_part_key[part] = s.parent_key AND coalesce(keys = keys_moved(), false)
                   AND p_verdict[i] <> batch_moved_key() AS moves,
               coalesce(p_prod_accepted[nullif(prod, 0)], false) AS accepted
          FROM unnest(p_batch_part, p_batch_prod, p_batch_keys) WITH ORDINALITY AS b (part, prod, keys, i)
         CROSS JOIN LATERAL split_of(p_part_key[part]) AS s
    ), moved AS (
        UPDATE partition_splits s SET last_moved_ms = p_now_ms
          FROM (SELECT DISTINCT parent_key FROM batch WHERE moves) AS b
         WHERE s.parent_key = b.parent_key
    )
    INSERT INTO split_producers (parent_key, producer_id, moved_ms, has_switched)
    SELECT parent_key, producer_id,
           CASE WHEN bool_or(moves) THEN p_now_ms ELSE coalesce(max(g.moved_ms), p_now_ms) END,
           coalesce(bool_or(g.has_switched), false) OR bool_or(for_child AND accepted)
      FROM batch LEFT JOIN split_producers g USING (parent_key, producer_id)
     WHERE producer_id IS NOT NULL AND (moves OR for_child)
     GROUP BY parent_key, producer_id
    ON CONFLICT (parent_key, producer_id) DO UPDATE
       SET moved_ms = excluded.moved_ms, has_switched = excluded.has_switched
$$;

-- The split that a partition is a parent or a child of, if any.
-- Locks: none. Idempotent: reads only. Cost: two index probes.
CREATE OR REPLACE FUNCTION split_of(p_key bigint) RETURNS SETOF partition_splits
LANGUAGE sql STABLE AS $$
    SELECT * FROM partition_splits WHERE parent_key = p_key
    UNION ALL
    SELECT * FROM partition_splits WHERE child_key = p_key
$$;
