-- Name files again, in a metastore that lost its rows; what of them is live follows (rebuild_extents.sql).
-- A file without live bytes is dead from now on: the janitor's.
-- Locks: the new file rows, ascending. Idempotent: a file that is named is left out. Cost: a row per file; two per file of a bulk write.
CREATE OR REPLACE FUNCTION rebuild_files(
    p_ids uuid[], p_births bigint[], p_levels int[], p_sizes bigint[], p_body_bytes bigint[], p_live_bytes bigint[]
) RETURNS int
LANGUAGE sql VOLATILE AS $$
    WITH named AS (
        INSERT INTO segment_files (file_id, state, level, size, body_bytes, live_bytes, committed_at, dead_at)
        SELECT id, file_live(), level, size, body_bytes, live_bytes, to_timestamp(born_ms / 1000.0),
               CASE WHEN live_bytes = 0 THEN wall_time() END
          FROM unnest(p_ids, p_births, p_levels, p_sizes, p_body_bytes, p_live_bytes)
               AS f (id, born_ms, level, size, body_bytes, live_bytes)
         ORDER BY id
        ON CONFLICT DO NOTHING
        RETURNING 1
    ), decided AS (  -- what is shown of bulk writes, from a bucket without a record, too: it gets one
        INSERT INTO decided_bulk_files (file_id)
        SELECT id FROM unnest(p_ids, p_live_bytes) AS f (id, live_bytes)
         WHERE live_bytes > 0 AND get_byte(uuid_send(id), 6) = 128 ORDER BY id
        ON CONFLICT DO NOTHING
    )
    SELECT count(*)::int FROM named
$$;
