-- The aborted transactions with offsets from p_from to p_to of a partition, packed in order of their ends; NULL if there
-- are none. Those that ended behind p_to are found by the stable offset: from the first end after which that is
-- behind p_to, every transaction began behind it.
-- Locks: none. Idempotent: reads only. Cost: two index probes, and those that were open at p_to.
CREATE OR REPLACE FUNCTION find_aborted(p_key bigint, p_from bigint, p_to bigint) RETURNS bytea
LANGUAGE sql STABLE AS $$
    SELECT string_agg(pack_aborted(partition_key, producer_id, first_offset, last_offset), '' ORDER BY last_offset)
      FROM aborted_transactions
     WHERE partition_key = p_key AND last_offset >= p_from AND first_offset <= p_to
       AND last_offset <= coalesce((SELECT a.last_offset FROM aborted_transactions a
                                     WHERE a.partition_key = p_key AND a.last_offset >= p_to AND a.stable_offset > p_to
                                     ORDER BY a.last_offset LIMIT 1), 9223372036854775807)
$$;
