-- The fence of everything that is done for a job: raises (SQLSTATE HR001, FencedError) unless the lease
-- (p_job_id, p_epoch) still holds. Until the transaction ends no worker can claim the job, so fence and
-- action are one. Call it first, in a separate statement. An expired lease holds until a worker claims
-- the job.
-- Locks: the job's row, shared: several actions of one holder run side by side. It comes after the
-- controller's row and before every other. Idempotent: reads only. Cost: one index probe.
CREATE OR REPLACE FUNCTION assert_job(p_job_id bigint, p_epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM jobs WHERE job_id = p_job_id AND epoch = p_epoch AND state = job_leased() FOR SHARE;
    IF NOT FOUND THEN
        PERFORM job_is_lost(p_job_id, p_epoch);
    END IF;
END $$;

-- Say that a lease is lost. Locks: none. Idempotent: reads only. Cost: none.
CREATE OR REPLACE FUNCTION job_is_lost(p_job_id bigint, p_epoch bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RAISE EXCEPTION 'job has another holder: job_id=% epoch=%', p_job_id, p_epoch USING ERRCODE = 'HR001';
END $$;
