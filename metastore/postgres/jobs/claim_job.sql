-- Lease the most urgent job of p_kinds that is due, or has an expired lease; no row when there is none.
-- Its epoch is higher than that of every lease of any job before it, in 32 bits: remote segments are named by it.
-- A lease that expires on the last attempt ends its job: work that crashes its worker is not repeated without limit.
-- Locks: the rows that it changes, skipping those that are locked. Idempotent: no; a lost answer
-- costs one lease. Cost: reads the unfinished jobs, through jobs_unfinished.
-- p_broker_id: of the agent in the worker's process; NULL if there is none.
CREATE OR REPLACE FUNCTION claim_job_as(p_worker text, p_kinds text[], p_lease interval, p_broker_id int)
RETURNS TABLE (job_id bigint, epoch bigint, kind text, key text, payload bytea, attempts int, progress text)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_job  jobs;
    v_now  timestamptz;
BEGIN
    LOOP
        SELECT * INTO v_job
          FROM jobs j
         WHERE j.state IN (job_waiting(), job_leased()) AND j.kind = ANY (p_kinds) AND j.due_at <= wall_time()
         ORDER BY j.priority DESC, j.due_at, j.job_id
         LIMIT 1 FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        v_now := wall_time();
        EXIT WHEN v_job.attempts < v_job.max_attempts OR v_job.max_attempts IS NULL;
        UPDATE jobs j
           SET state = job_given_up(), ended_at = v_now, last_error = coalesce(last_error, 'its leases ran out')
         WHERE j.job_id = v_job.job_id;
    END LOOP;
    RETURN QUERY
        UPDATE jobs j
           SET state = job_leased(), epoch = nextval('segment_epochs'), worker = p_worker, broker_id = p_broker_id,
               attempts = j.attempts + 1, leased_at = v_now, due_at = v_now + p_lease
         WHERE j.job_id = v_job.job_id
        RETURNING j.job_id, j.epoch, j.kind, j.key, j.payload, j.attempts, j.progress;
END $$;

-- claim_job_as, by a worker that does not say in which agent it runs: one of an older version.
-- Locks, idempotence, cost: as that.
CREATE OR REPLACE FUNCTION claim_job(p_worker text, p_kinds text[], p_lease interval)
RETURNS TABLE (job_id bigint, epoch bigint, kind text, key text, payload bytea, attempts int, progress text)
LANGUAGE sql VOLATILE AS $$
    SELECT * FROM claim_job_as(p_worker, p_kinds, p_lease, NULL)
$$;
