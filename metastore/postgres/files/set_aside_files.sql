-- After the store refused to delete the objects of these files, try them again later, and not before: until then
-- take_dead_files leaves them out, so that they do not delay the others.
-- Locks: the job's row, shared; the files' rows, ascending. Idempotent: a later call replaces the time.
-- Cost: one index probe and one update per file.
CREATE OR REPLACE FUNCTION set_aside_files(p_job_id bigint, p_epoch bigint, p_ids uuid[], p_delays_ms bigint[])
RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM assert_job(p_job_id, p_epoch);
    PERFORM FROM segment_files f WHERE f.file_id = ANY (p_ids) ORDER BY f.file_id FOR UPDATE;
    UPDATE segment_files f SET dead_at = wall_time() + refused.delay_ms * interval '1 ms'
      FROM unnest(p_ids, p_delays_ms) AS refused (file_id, delay_ms)
     WHERE f.file_id = refused.file_id AND f.state IN (file_condemned(), file_deleting());
END $$;
