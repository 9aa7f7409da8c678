-- How many transactional ids, producer states, and committed offsets, share partitions and groups there
-- are, about.
-- Locks: none. Idempotent: reads only. Cost: of rows_about, five times.
CREATE OR REPLACE FUNCTION client_rows(
    OUT transactional_ids  bigint,
    OUT producer_states    bigint,
    OUT committed_offsets  bigint
)
LANGUAGE sql VOLATILE AS $$
    SELECT rows_about('transactions'), rows_about('producer_state'),
           rows_about('group_offsets') + rows_about('share_partitions') + rows_about('consumer_groups')
$$;

-- The rows of a table: counted if it has at most 16 MiB, else estimated as the planner does it, from the last vacuum's
-- rows per page and the present size.
-- Locks: none. Idempotent: reads only. Cost: one pass over at most 2,048 pages; of a larger table no page, unless it was
-- never vacuumed.
CREATE OR REPLACE FUNCTION rows_about(p_table text) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_bytes bigint := pg_relation_size(p_table::regclass);
    v_rows  bigint;
BEGIN
    SELECT (reltuples / relpages * (v_bytes / current_setting('block_size')::int))::bigint INTO v_rows
      FROM pg_class
     WHERE oid = p_table::regclass AND relpages > 0 AND reltuples >= 0 AND v_bytes > 16777216;
    IF v_rows IS NULL THEN
        EXECUTE format('SELECT count(*) FROM %s', p_table::regclass) INTO v_rows;
    END IF;
    RETURN v_rows;
END $$;
