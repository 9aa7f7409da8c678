-- What retention does with its decisions: move_log_starts under the lease of its job, unless configs have changed since
-- the metadata image that it decided by: then no row, and nothing happened. p_metadata_offset: the image's offset.
-- A linked partition keeps its log start, which is its source's: only extents that are below it already are removed.
-- Locks: the job's row and metadata_head, shared, so that a config does not change meanwhile; then as
-- move_log_starts. Idempotent and cost: as move_log_starts.
CREATE OR REPLACE FUNCTION enforce_retention(
    p_job bigint, p_epoch bigint, p_metadata_offset bigint, p_keys bigint[], p_offsets bigint[], p_limit int
) RETURNS TABLE (log_start_offset bigint, high_watermark bigint, extents int, bytes bigint, has_more boolean)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM assert_job(p_job, p_epoch);
    PERFORM FROM metadata_head WHERE configs_offset <= p_metadata_offset FOR SHARE;
    IF FOUND THEN
        RETURN QUERY SELECT * FROM remove_below(p_job, p_keys, array(
            SELECT CASE WHEN p.state = state_linked() THEN p.log_start_offset ELSE wanted END
              FROM unnest(p_keys, p_offsets) WITH ORDINALITY AS t (key, wanted, number)
              LEFT JOIN partitions p ON p.partition_key = key
             ORDER BY number), p_limit);
    END IF;
END $$;
