-- swap_extents for a pass of cleaning by key. p_cleaned[i]: the cleaned offset that the pass relied on when it removed
-- delete markers, or ends of transactions, from swap i. If a partition's stored one is lower, no swap of the call is done:
-- an earlier record of such a marker's key, or one of such a transaction, may be live.
-- With its end an aborted transaction is forgotten: a reader that learned of it, and does not meet its marker, would skip
-- all that its producer wrote later.
-- Locks: the job's row, shared; the partitions' rows, ascending; then as swap_extents. Idempotent and cost: as that.
CREATE OR REPLACE FUNCTION swap_cleaned_extents(
    p_job_id bigint, p_epoch bigint,
    p_file_id uuid, p_born_ms bigint, p_level smallint, p_size bigint, p_body_bytes bigint,
    p_key bigint[], p_base bigint[], p_last bigint[], p_position bigint[], p_length bigint[], p_leader_epoch int[],
    p_time bigint[],
    p_input_swap int[], p_input_last bigint[], p_input_file uuid[], p_cleaned bigint[]
) RETURNS smallint[]
LANGUAGE plpgsql VOLATILE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_outcomes smallint[];
BEGIN
    v_outcomes := swap_judged(p_job_id, p_epoch, p_file_id, p_born_ms, p_level, p_size, p_body_bytes, p_key, p_base,
                              p_last, p_position, p_length, p_leader_epoch, p_time, p_input_swap, p_input_last,
                              p_input_file, p_cleaned);
    DELETE FROM aborted_transactions a
     USING unnest(p_input_swap, p_input_last, p_input_file) AS i (swap, last, file_id)
     WHERE get_byte(uuid_send(i.file_id), 6) < 16  -- a marker: metastore/transaction_markers.py
       AND v_outcomes[i.swap] = swap_done() AND a.partition_key = p_key[i.swap] AND a.last_offset = i.last;
    RETURN v_outcomes;
END $$;

-- Whether each of these partitions is cleaned at least up to p_cleaned[i]; true if p_cleaned is NULL.
-- Locks: none; the caller holds the partitions' rows. Idempotent: reads only. Cost: an index probe per partition.
CREATE OR REPLACE FUNCTION cleaned_as_far(p_key bigint[], p_cleaned bigint[]) RETURNS boolean
LANGUAGE sql STABLE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
    SELECT NOT EXISTS (SELECT FROM unnest(p_key, p_cleaned) AS t (key, cleaned)
                         LEFT JOIN cleaned_partitions c ON c.partition_key = t.key
                        WHERE coalesce(c.cleaned_offset, 0) < t.cleaned)
$$;
