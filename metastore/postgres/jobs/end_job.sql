-- How a lease ends. Each ending is idempotent by (job id, epoch): the same lease ended again changes
-- nothing; a lease that was lost raises HR001 (job_is_lost).

-- The job's row, locked, if this lease still holds; all NULL if this lease has ended already.
-- Locks: the job's row. Idempotent: reads only. Cost: one index probe.
CREATE OR REPLACE FUNCTION lock_lease(p_job_id bigint, p_epoch bigint) RETURNS jobs
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_job jobs;
BEGIN
    SELECT * INTO v_job FROM jobs WHERE job_id = p_job_id FOR UPDATE;
    IF v_job.epoch IS DISTINCT FROM p_epoch THEN
        PERFORM job_is_lost(p_job_id, p_epoch);
    ELSIF v_job.state <> job_leased() THEN
        RETURN NULL;
    END IF;
    RETURN v_job;
END $$;

-- Renew the lease and keep its holder's words. Raises for a lease that has ended, too.
-- Locks: the job's row. Idempotent: yes. Cost: one HOT update.
CREATE OR REPLACE FUNCTION heartbeat_job(p_job_id bigint, p_epoch bigint, p_lease interval, p_progress text)
RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF (lock_lease(p_job_id, p_epoch)).job_id IS NULL THEN
        PERFORM job_is_lost(p_job_id, p_epoch);
    END IF;
    UPDATE jobs SET due_at = wall_time() + p_lease, progress = p_progress WHERE job_id = p_job_id;
END $$;

-- Done; a periodic job waits for its next turn.
-- Locks: the job's row. Idempotent: yes. Cost: one update.
CREATE OR REPLACE FUNCTION finish_job(p_job_id bigint, p_epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_job  jobs := lock_lease(p_job_id, p_epoch);
    v_now  timestamptz := wall_time();
BEGIN
    UPDATE jobs
       SET state = CASE WHEN period_ms IS NULL THEN job_done() ELSE job_waiting() END,
           due_at = v_now + coalesce(period_ms, 0) * interval '1 ms',
           attempts = 0, progress = '', last_error = NULL, ended_at = v_now
     WHERE job_id = v_job.job_id;
END $$;

-- Try again, not before p_retry from now; give up when p_retry is NULL or attempts have run out. A
-- periodic job is never given up: without p_retry it waits for its next turn. Answers the job's state.
-- Locks: the job's row. Idempotent: yes. Cost: one update.
CREATE OR REPLACE FUNCTION fail_job(p_job_id bigint, p_epoch bigint, p_error text, p_retry interval)
RETURNS smallint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_job   jobs := lock_lease(p_job_id, p_epoch);
    v_now   timestamptz := wall_time();
    v_over  boolean := v_job.period_ms IS NULL AND (p_retry IS NULL OR v_job.attempts >= v_job.max_attempts);
BEGIN
    UPDATE jobs
       SET state = CASE WHEN v_over THEN job_given_up() ELSE job_waiting() END,
           due_at = v_now + coalesce(p_retry, coalesce(period_ms, 0) * interval '1 ms'),
           last_error = p_error,
           ended_at = CASE WHEN v_over THEN v_now ELSE ended_at END
     WHERE job_id = v_job.job_id;
    RETURN (SELECT state FROM jobs WHERE job_id = p_job_id);
END $$;

-- Give the job back unfinished: due at once, and this lease was no attempt.
-- Locks: the job's row. Idempotent: yes. Cost: one update.
CREATE OR REPLACE FUNCTION release_job(p_job_id bigint, p_epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_job jobs := lock_lease(p_job_id, p_epoch);
BEGIN
    UPDATE jobs SET state = job_waiting(), due_at = wall_time(), attempts = attempts - 1 WHERE job_id = v_job.job_id;
END $$;
