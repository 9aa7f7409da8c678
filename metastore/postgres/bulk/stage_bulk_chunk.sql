-- Keep one chunk of an attempt until the attempt is decided. Nothing of it can be read before.
-- Locks: the new row. Idempotent: an attempt's chunk is stored once. Cost: one insert.
CREATE OR REPLACE FUNCTION stage_bulk_chunk(
    p_attempt uuid, p_chunk int,
    p_file_ids uuid[], p_born_ms bigint[], p_until_ms bigint[], p_sizes bigint[], p_body_bytes bigint[],
    p_run_file int[], p_run_key bigint[], p_run_position bigint[], p_run_length bigint[], p_run_records bigint[],
    p_run_time bigint[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO bulk_write_chunks (attempt, chunk, staged_at, file_ids, born_ms, until_ms, sizes, body_bytes, run_file,
                                   run_key, run_position, run_length, run_records, run_time)
    VALUES (p_attempt, p_chunk, wall_time(), p_file_ids, p_born_ms, p_until_ms, p_sizes, p_body_bytes, p_run_file,
            p_run_key, p_run_position, p_run_length, p_run_records, p_run_time)
    ON CONFLICT DO NOTHING;
END $$;
