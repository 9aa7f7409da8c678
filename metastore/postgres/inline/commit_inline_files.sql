-- commit_files for a call with inline files: their bytes are stored first, in the same transaction, so that no other commit
-- waits for them while this one holds its shards. p_body: by file; NULL for a file in the bucket.
-- Locks: the bytes' new rows, ascending by file id; then as commit_files. Idempotent: as commit_files: a file that was committed stores
-- nothing again, and one that is being committed waits for that. Bytes of a refused file go with their slot.
-- Cost: as commit_files, and the bytes.
CREATE OR REPLACE FUNCTION commit_inline_files(
    p_body bytea[],
    p_node_id int, p_broker_epoch bigint, p_producer_expiration_ms bigint,
    p_file_id uuid[], p_file_born_ms bigint[], p_file_size bigint[], p_file_bytes bigint[],
    p_part_key bigint[], p_part_leader_epoch int[], p_part_count int[], p_parts_agree boolean,
    p_batch_file int[], p_batch_part int[], p_batch_prod int[], p_batch_position bigint[], p_batch_length int[],
    p_batch_records int[], p_batch_time bigint[], p_batch_epoch smallint[], p_batch_sequence int[],
    p_batch_leader_epoch int[], p_batch_count int[],
    p_batch_transaction int[], p_batch_keys int[], p_batch_alias int[],
    p_batch_before bigint[], p_batch_run int[], p_run_first int[], p_run_last int[], p_run_time bigint[],
    p_part_records bigint[], p_part_extents int[], p_part_bytes bigint[], p_part_time bigint[],
    p_prod_id bigint[], p_prod_first int[], p_prod_last int[], p_prod_chained boolean[],
    p_recent int[], p_prod_recent int[], p_ring bytea
) RETURNS TABLE (status smallint, answer bytea)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO inline_files (slot, file_id, body)
    SELECT inline_slot(id), id, body FROM unnest(p_file_id, p_body) AS f (id, body)
     WHERE body IS NOT NULL AND NOT EXISTS (SELECT FROM segment_files WHERE file_id = id)
     ORDER BY id
    ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT c.status, c.answer FROM commit_files(
        p_node_id, p_broker_epoch, p_producer_expiration_ms, p_file_id, p_file_born_ms, p_file_size,
        p_file_bytes, p_part_key, p_part_leader_epoch, p_part_count, p_parts_agree, p_batch_file,
        p_batch_part, p_batch_prod, p_batch_position, p_batch_length, p_batch_records, p_batch_time,
        p_batch_epoch, p_batch_sequence, p_batch_leader_epoch, p_batch_count, p_batch_transaction,
        p_batch_keys, p_batch_alias, p_batch_before, p_batch_run, p_run_first, p_run_last,
        p_run_time, p_part_records, p_part_extents, p_part_bytes, p_part_time, p_prod_id,
        p_prod_first, p_prod_last, p_prod_chained, p_recent, p_prod_recent, p_ring
    ) AS c;
END $$;
