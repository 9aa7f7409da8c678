-- What a commit needs of its runs and of its producers' newest batches, in columns. Agents send these columns for the
-- case that every batch is accepted (metastore/postgres/commit/grouping.py); these functions make them if some are not.

-- By partition, as in p_part_key: records, extents, their bytes, their highest timestamp; 0, 0, 0 and NULL for one
-- that gets nothing. Locks: none. Idempotent: pure. Cost: O(partitions and runs).
CREATE OR REPLACE FUNCTION lay_out_partitions(
    p_part_key bigint[], p_run_first int[], p_run_last int[], p_run_time bigint[], p_batch_part int[], p_batch_before bigint[],
    p_batch_records int[], p_batch_position bigint[], p_batch_length int[],
    OUT part_records bigint[], OUT part_extents int[], OUT part_bytes bigint[], OUT part_time bigint[]
)
LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(records ORDER BY part), array_agg(extents ORDER BY part), array_agg(bytes ORDER BY part),
           array_agg(highest ORDER BY part)
      FROM (SELECT part, sum(records)::bigint AS records, sum(extents)::int AS extents, sum(bytes)::bigint AS bytes,
                   max(time) AS highest
              FROM (SELECT part, 0 AS records, 0 AS extents, 0 AS bytes, NULL::bigint AS time
                      FROM generate_subscripts(p_part_key, 1) AS part
                    UNION ALL
                    SELECT p_batch_part[first], p_batch_before[last] + p_batch_records[last] - p_batch_before[first], 1,
                           p_batch_position[last] + p_batch_length[last] - p_batch_position[first], time
                      FROM unnest(p_run_first, p_run_last, p_run_time) AS r (first, last, time)) AS run
             GROUP BY part) AS p
$$;

-- By producer, as in p_prod_id: its first recent batch (NULL: it has none), and where in `recent` its batches end.
-- recent: p_recent by producer, then in order. ring: of each of these 16 bytes, which are those of its ring entry around
-- the base offset (recent_entry): first and last sequence, append time.
-- Locks: none. Idempotent: pure. Cost: O(producers and recent batches).
CREATE OR REPLACE FUNCTION lay_out_producers(
    p_prod_id bigint[], p_recent int[], p_batch_prod int[], p_batch_records int[], p_batch_sequence int[],
    p_batch_time bigint[],
    OUT prod_first int[], OUT prod_recent int[], OUT recent int[], OUT ring bytea
)
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(first ORDER BY prod), '{}'), coalesce(array_agg(upto ORDER BY prod), '{}'),
           array(SELECT i FROM unnest(p_recent) AS i ORDER BY p_batch_prod[i], i),
           (SELECT coalesce(string_agg(int4send(p_batch_sequence[i])
                                       || int4send(next_sequence(p_batch_sequence[i], p_batch_records[i] - 1))
                                       || int8send(p_batch_time[i]), '' ORDER BY p_batch_prod[i], i), '')
              FROM unnest(p_recent) AS i)
      FROM (SELECT prod, min(i) AS first, (sum(count(i)) OVER (ORDER BY prod))::int AS upto
              FROM (SELECT prod, NULL::int AS i FROM generate_subscripts(p_prod_id, 1) AS prod
                    UNION ALL
                    SELECT p_batch_prod[i], i FROM unnest(p_recent) AS i) AS batch
             GROUP BY prod) AS p
$$;

-- The ring entry of the batch at p_place, from 1, of p_ring (lay_out_producers), which begins at offset p_base. 24 bytes:
-- first and last sequence, base offset, append time.
-- Locks: none. Idempotent: pure. Cost: none worth naming.
CREATE OR REPLACE FUNCTION recent_entry(p_ring bytea, p_place int, p_base bigint) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN substring(p_ring FROM 16 * p_place - 15 FOR 8) || int8send(p_base) || substring(p_ring FROM 16 * p_place - 7 FOR 8);

-- The ring entries of a producer's newest batches, newest first, at most five: of those from place
-- p_before + 1 to p_last of p_recent and p_ring. p_records_before: by batch, the records before it in its partition, which
-- has the high watermark p_head. p_before: NULL is 0.
-- Locks: none. Idempotent: pure. Cost: none worth naming. The planner inlines it: nothing is sorted or grouped.
CREATE OR REPLACE FUNCTION recent_entries(
    p_ring bytea, p_recent int[], p_records_before bigint[], p_head bigint, p_before int, p_last int
) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN recent_entry(p_ring, p_last, p_head + p_records_before[p_recent[p_last]])
       || CASE WHEN p_last - 1 <= coalesce(p_before, 0) THEN ''
               ELSE recent_entry(p_ring, p_last - 1, p_head + p_records_before[p_recent[p_last - 1]])
       || CASE WHEN p_last - 2 <= coalesce(p_before, 0) THEN ''
               ELSE recent_entry(p_ring, p_last - 2, p_head + p_records_before[p_recent[p_last - 2]])
       || CASE WHEN p_last - 3 <= coalesce(p_before, 0) THEN ''
               ELSE recent_entry(p_ring, p_last - 3, p_head + p_records_before[p_recent[p_last - 3]])
       || CASE WHEN p_last - 4 <= coalesce(p_before, 0) THEN ''
               ELSE recent_entry(p_ring, p_last - 4, p_head + p_records_before[p_recent[p_last - 4]])
          END END END END;
