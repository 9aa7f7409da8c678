-- What becomes of batches while children are merged into their parents, unless they are duplicates: by batch
-- batch_appended(), batch_sent_back() or batch_moved_key(). p_split: what judge_splits says, which goes first; NULL:
-- nothing. metastore/partitions/merging.py has the rule; batches without a producer id wait for nothing.
-- All batches of a call come at one time, those for aliases before those of the parents.
-- A batch for a child comes for its parent, by the child's alias, from an agent that knows of the alias; from one that
-- does not, or of a client that sends counts, it is sent back. p_batch_keys and p_batch_alias: as in judge_splits.
-- Locks: none; the caller holds the shards of parents and aliases, and every change of a phase takes the child's, and
-- from MERGED on the parent's. Idempotent: reads only. Cost: three index probes per batch.
CREATE OR REPLACE FUNCTION judge_merges(
    p_now_ms bigint, p_part_key bigint[], p_batch_part int[], p_batch_prod int[], p_prod_id bigint[],
    p_batch_count int[], p_batch_keys int[], p_batch_alias int[], p_split int[]
) RETURNS int[]
LANGUAGE sql STABLE AS $$
    WITH batch AS MATERIALIZED (
        SELECT i, count >= 0 OR keys = keys_stay() AS stays, coalesce(keys = keys_moved(), false) AS has_moved,
               coalesce(alias >= 0, false) AS for_alias, m.phase, m.child_key,
               m.producer_quiet_ms, p_prod_id[nullif(prod, 0)] AS producer_id, takes_nothing(p_now_ms, p_part_key[part]) AS is_closed
          FROM unnest(p_batch_part, p_batch_prod, p_batch_count, p_batch_keys, p_batch_alias)
               WITH ORDINALITY AS b (part, prod, count, keys, alias, i)
          LEFT JOIN LATERAL (SELECT * FROM merge_for(p_part_key[part], alias)) AS m ON true
    ), known AS MATERIALIZED (
        SELECT child_key, producer_id, g.child_ms, g.has_switched, k.comes_to_child
          FROM (SELECT child_key, producer_id, bool_or(for_alias) AS comes_to_child
                  FROM batch WHERE producer_id IS NOT NULL AND child_key IS NOT NULL GROUP BY 1, 2) AS k
          LEFT JOIN merge_producers g USING (child_key, producer_id)
    )
    SELECT coalesce(array_agg(CASE
               WHEN p_split[i] <> batch_appended() THEN p_split[i]
               WHEN b.is_closed THEN batch_sent_back()
               WHEN b.for_alias THEN
                   CASE WHEN b.child_key IS NULL THEN batch_sent_back()
                        WHEN b.phase = merge_merged() AND k.has_switched THEN batch_moved_key()
                        ELSE batch_appended() END
               WHEN b.child_key IS NULL OR b.stays THEN batch_appended()
               WHEN NOT b.has_moved THEN batch_sent_back()
               WHEN b.producer_id IS NULL OR k.has_switched
                 OR (p_now_ms - coalesce(k.child_ms, p_now_ms) >= b.producer_quiet_ms AND NOT k.comes_to_child)
                    THEN batch_appended()
               ELSE batch_sent_back() END ORDER BY i), '{}')
      FROM batch b LEFT JOIN known k USING (child_key, producer_id)
$$;

-- Remember what judge_merges said (p_verdict). p_accepted: by batch, whether it was appended. Duplicates count as signs
-- of the producer: it waits longer than the rule demands.
-- Locks: none; as judge_merges. Idempotent: a repeated call changes times only. Cost: a row per (child, producer).
CREATE OR REPLACE FUNCTION note_merges(
    p_now_ms bigint, p_part_key bigint[], p_batch_part int[], p_batch_prod int[], p_prod_id bigint[],
    p_batch_keys int[], p_batch_alias int[], p_verdict int[], p_accepted boolean[]
) RETURNS void
LANGUAGE sql VOLATILE AS $$
    WITH batch AS MATERIALIZED (
        SELECT m.child_key, p_prod_id[nullif(prod, 0)] AS producer_id,
               coalesce(alias >= 0, false) AND p_verdict[i] = batch_appended() AS comes,
               coalesce(keys = keys_moved(), false) AS has_moved, p_accepted[i] AS is_accepted
          FROM unnest(p_batch_part, p_batch_prod, p_batch_keys, p_batch_alias)
               WITH ORDINALITY AS b (part, prod, keys, alias, i)
         CROSS JOIN LATERAL merge_for(p_part_key[part], alias) AS m
         WHERE m.phase = merge_merged()
    )
    INSERT INTO merge_producers (child_key, producer_id, child_ms, has_switched)
    SELECT child_key, producer_id,
           CASE WHEN bool_or(comes) THEN p_now_ms ELSE coalesce(max(g.child_ms), p_now_ms) END,
           coalesce(bool_or(g.has_switched), false) OR bool_or(has_moved AND is_accepted)
      FROM batch LEFT JOIN merge_producers g USING (child_key, producer_id)
     WHERE producer_id IS NOT NULL AND (comes OR has_moved)
     GROUP BY child_key, producer_id
    ON CONFLICT (child_key, producer_id) DO UPDATE
       SET child_ms = excluded.child_ms, has_switched = excluded.has_switched
$$;

-- The merge that a batch is judged by: of the alias that it came for, if that is an alias of its partition; of the
-- alias that the partition got last, until it is settled.
-- Locks: none. Idempotent: reads only. Cost: an index probe.
CREATE OR REPLACE FUNCTION merge_for(p_key bigint, p_alias int) RETURNS SETOF partition_merges
LANGUAGE sql STABLE AS $$
    SELECT * FROM partition_merges
     WHERE child_key = key_of_alias(p_key, p_alias) AND parent_key = p_key
       AND phase IN (merge_merged(), merge_settled())
    UNION ALL
    SELECT * FROM partition_merges
     WHERE parent_key = p_key AND phase = merge_merged() AND key_of_alias(p_key, p_alias) IS NULL
$$;

-- Whether no batch is appended to the partition: it is an alias, or a child in a pause.
-- A pause ends after pause_most_ms also if no controller undoes it. This loses nothing: a child is merged only when
-- groups have committed the end that it has then.
-- Locks: none. Idempotent: reads only. Cost: an index probe.
CREATE OR REPLACE FUNCTION takes_nothing(p_now_ms bigint, p_key bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM partition_merges
                    WHERE child_key = p_key
                      AND (phase IN (merge_merged(), merge_settled())
                           OR (phase = merge_paused() AND p_now_ms - since_ms < pause_most_ms)))
$$;

-- The key of the alias with this index that a batch for the partition came for; NULL: it came for none.
-- Locks: none. Idempotent: pure. Cost: none worth naming.
CREATE OR REPLACE FUNCTION key_of_alias(p_key bigint, p_alias int) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN p_alias >= 0 THEN (p_key >> 24 << 24) | p_alias END;

-- The producers' states of a call with batches for aliases: they stay with the alias, so what was appended to the child
-- is still found as a duplicate. prod_row: as commit_files finds it.
-- Locks: none; the caller holds the shards of parents and aliases. Idempotent: reads only.
-- Cost: an index probe per producer of an alias.
CREATE OR REPLACE FUNCTION find_producers_of_aliases(
    p_part_key bigint[], p_batch_part int[], p_batch_alias int[], p_prod_id bigint[], p_prod_first int[],
    INOUT prod_row tid[], INOUT prod_regular boolean[], OUT prod_key bigint[]
)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    prod_key := array(SELECT key_of_alias(p_part_key[p_batch_part[first]], p_batch_alias[first])
                        FROM unnest(p_prod_first) WITH ORDINALITY AS g (first, prod) ORDER BY prod);
    prod_row := array(
        SELECT CASE WHEN key IS NULL THEN known ELSE (
                   SELECT ctid FROM producer_state WHERE partition_key = key AND producer_id = id
                    ORDER BY update_block DESC LIMIT 1) END
          FROM unnest(prod_key, p_prod_id, prod_row) WITH ORDINALITY AS g (key, id, known, prod) ORDER BY prod);
    prod_regular := array(SELECT regular AND key IS NULL
                            FROM unnest(prod_key, prod_regular) WITH ORDINALITY AS g (key, regular, prod)
                           ORDER BY prod);
END $$;

-- By batch: whether judge_batches accepted it, by what it says of producers: the last accepted batch, and those of that
-- one's epoch. Locks: none. Idempotent: pure. Cost: O(batches).
CREATE OR REPLACE FUNCTION accepted_batches(
    p_batch_prod int[], p_batch_epoch smallint[], p_prod_last int[], p_recent int[]
) RETURNS boolean[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(i <= coalesce(p_prod_last[prod], 0)
                              AND (epoch <> p_batch_epoch[p_prod_last[prod]] OR i = ANY (p_recent)) ORDER BY i), '{}')
      FROM unnest(p_batch_prod, p_batch_epoch) WITH ORDINALITY AS b (prod, epoch, i)
$$;
