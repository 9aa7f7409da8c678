-- commit_files as agents of the release before call it: some numbers carry more than one value, and nothing is laid out
-- by partition or for rings. Its only tasks are to take the numbers apart and to add those columns. It goes in the
-- next release, which does not run together with those agents.
-- -2 - epoch: the batch is transactional. Then ~sequence: it may add its partition to the transaction.
-- In place of a batch's partition count: -3, its keys stay; -4, some key moved; -16 - index, it came for this alias.
-- In place of a partition's leader epoch or count: -2, its batches differ.
-- Locks, idempotence, answer: commit_files. Cost: O(batches) more.
CREATE OR REPLACE FUNCTION commit_files(
    p_node_id int, p_broker_epoch bigint, p_producer_expiration_ms bigint,
    p_file_id uuid[], p_file_born_ms bigint[], p_file_size bigint[], p_file_bytes bigint[],
    p_part_key bigint[], p_part_leader_epoch int[], p_part_count int[],
    p_batch_file int[], p_batch_part int[], p_batch_prod int[], p_batch_position bigint[], p_batch_length int[],
    p_batch_records int[], p_batch_time bigint[], p_batch_epoch smallint[], p_batch_sequence int[],
    p_batch_leader_epoch int[], p_batch_count int[],
    p_batch_before bigint[], p_batch_run int[], p_run_first int[], p_run_last int[], p_run_time bigint[],
    p_prod_id bigint[], p_prod_first int[], p_prod_last int[], p_prod_chained boolean[], p_recent int[]
) RETURNS TABLE (status smallint, answer bytea)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_transaction int[] := '{}';
    v_keys        int[] := '{}';
    v_alias       int[] := '{}';
    v_part        record;
    v_prod        record;
BEGIN
    IF -2 >= ANY (p_batch_epoch) THEN
        SELECT t.kind, t.epoch, t.sequence INTO v_transaction, p_batch_epoch, p_batch_sequence
          FROM transactional_batches(p_batch_epoch, p_batch_sequence) AS t;
    END IF;
    IF -3 >= ANY (p_batch_count) THEN
        IF -3 = ANY (p_batch_count) OR -4 = ANY (p_batch_count) THEN
            v_keys := array(SELECT CASE count WHEN -3 THEN keys_stay() WHEN -4 THEN keys_moved() ELSE keys_unknown() END
                              FROM unnest(p_batch_count) WITH ORDINALITY AS b (count, i) ORDER BY i);
        END IF;
        IF -16 >= ANY (p_batch_count) THEN
            v_alias := array(SELECT CASE WHEN count <= -16 THEN -16 - count ELSE -1 END
                               FROM unnest(p_batch_count) WITH ORDINALITY AS b (count, i) ORDER BY i);
        END IF;
        p_batch_count := array(SELECT greatest(count, -1)
                                 FROM unnest(p_batch_count) WITH ORDINALITY AS b (count, i) ORDER BY i);
    END IF;
    SELECT * INTO v_part
      FROM lay_out_partitions(p_part_key, p_run_first, p_run_last, p_run_time, p_batch_part, p_batch_before,
                              p_batch_records, p_batch_position, p_batch_length);
    SELECT * INTO v_prod
      FROM lay_out_producers(p_prod_id, p_recent, p_batch_prod, p_batch_records, p_batch_sequence,
                             p_batch_time);
    RETURN QUERY
        SELECT * FROM commit_files(
            p_node_id => p_node_id, p_broker_epoch => p_broker_epoch,
            p_producer_expiration_ms => p_producer_expiration_ms,
            p_file_id => p_file_id, p_file_born_ms => p_file_born_ms, p_file_size => p_file_size,
            p_file_bytes => p_file_bytes,
            p_part_key => p_part_key, p_part_leader_epoch => p_part_leader_epoch, p_part_count => p_part_count,
            p_parts_agree => true,  -- where they do not, -2 is no partition's number
            p_batch_file => p_batch_file, p_batch_part => p_batch_part, p_batch_prod => p_batch_prod,
            p_batch_position => p_batch_position, p_batch_length => p_batch_length, p_batch_records => p_batch_records,
            p_batch_time => p_batch_time, p_batch_epoch => p_batch_epoch, p_batch_sequence => p_batch_sequence,
            p_batch_leader_epoch => p_batch_leader_epoch, p_batch_count => p_batch_count,
            p_batch_transaction => v_transaction, p_batch_keys => v_keys, p_batch_alias => v_alias,
            p_batch_before => p_batch_before, p_batch_run => p_batch_run,
            p_run_first => p_run_first, p_run_last => p_run_last, p_run_time => p_run_time,
            p_part_records => v_part.part_records, p_part_extents => v_part.part_extents,
            p_part_bytes => v_part.part_bytes, p_part_time => v_part.part_time,
            p_prod_id => p_prod_id, p_prod_first => p_prod_first, p_prod_last => p_prod_last,
            p_prod_chained => p_prod_chained,
            p_recent => v_prod.recent, p_prod_recent => v_prod.prod_recent, p_ring => v_prod.ring);
END $$;

-- The transactional batches among epochs and sequences, and what those are.
-- Locks: none. Idempotent: pure. Cost: O(batches).
CREATE OR REPLACE FUNCTION transactional_batches(
    p_epoch smallint[], p_sequence int[], OUT kind int[], OUT epoch smallint[], OUT sequence int[]
)
LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(CASE WHEN e > -2 THEN in_no_transaction() WHEN s >= 0 THEN in_added() ELSE in_any_partition() END
                     ORDER BY i),
           array_agg(CASE WHEN e > -2 THEN e ELSE (-2 - e)::smallint END ORDER BY i),
           array_agg(CASE WHEN e > -2 OR s >= 0 THEN s ELSE -1 - s END ORDER BY i)
      FROM unnest(p_epoch, p_sequence) WITH ORDINALITY AS b (e, s, i)
$$;
