-- Give the jobs of p_kind without a holder to the workers of another kind, if they were added p_after ago or
-- were claimed p_attempts times without success; how many. They start again: due at once, attempts from 0. This ends an
-- expired lease. Only while p_by's lease holds (assert_job).
-- Locks: the planner's job row, then those rows, skipping those that are locked; one with the key of
-- an unfinished job of the other kind stays. Idempotent: yes. Cost: one update per job.
CREATE OR REPLACE FUNCTION hand_over_jobs(
    p_by_job bigint, p_by_epoch bigint, p_kind text, p_to_kind text, p_after interval, p_attempts int
) RETURNS int
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    v_now    timestamptz;
    v_handed int;
BEGIN
    PERFORM assert_job(p_by_job, p_by_epoch);
    v_now := wall_time();
    UPDATE jobs
       SET kind = p_to_kind, state = job_waiting(), due_at = v_now, attempts = 0
     WHERE job_id IN (SELECT j.job_id
                        FROM jobs j
                       WHERE j.kind = p_kind
                         AND (j.state = job_waiting() OR (j.state = job_leased() AND j.due_at <= v_now))
                         AND (j.created_at <= v_now - p_after OR j.attempts >= p_attempts)
                         AND NOT EXISTS (SELECT FROM jobs o
                                          WHERE o.kind = p_to_kind AND o.key = j.key
                                            AND o.state IN (job_waiting(), job_leased()))
                         FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS v_handed = ROW_COUNT;
    RETURN v_handed;
END $$;
