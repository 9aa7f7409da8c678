-- Condemn ids without a row that are p_min_age and the cluster's file.delete.delay.ms old, none while it has
-- no value: a commit inserts under the
-- same unique key, so the first to insert decides. Returns those of the ids that are condemned, now or
-- since an earlier call: their objects may be deleted.
-- Locks: the job's row, shared; the new rows, ascending (an insert waits for a commit that is at the same id).
-- Idempotent: yes. Cost: an insert or an index probe per id.
CREATE OR REPLACE FUNCTION condemn_files(
    p_job_id bigint, p_epoch bigint, p_incarnation_id uuid, p_ids uuid[], p_births bigint[], p_min_age interval
) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
DECLARE
    v_delay interval := cluster_interval('file.delete.delay.ms');
BEGIN
    PERFORM assert_janitor(p_job_id, p_epoch, p_incarnation_id);
    INSERT INTO segment_files (file_id, state, size, live_bytes, committed_at, dead_at)
    SELECT id, file_condemned(), 0, 0, wall_time(), wall_time()
      FROM unnest(p_ids, p_births) AS f (id, born_ms)
     WHERE born_ms < to_ms(wall_time() - greatest(p_min_age, v_delay)) AND v_delay IS NOT NULL
       AND NOT EXISTS (SELECT FROM segment_files WHERE file_id = id)
     ORDER BY id
    ON CONFLICT DO NOTHING;
    RETURN QUERY SELECT file_id FROM segment_files WHERE file_id = ANY (p_ids) AND state = file_condemned();
END $$;
