-- The first answer of each swap call of a lease. A call may be sent again after its answer was lost, and meanwhile a log
-- start may have moved, or another job may have replaced something: judged again, the call could get another answer, after
-- the first one has ended its segments.

-- The number under which a call's answer is kept: a digest of its swaps and their inputs.
-- Locks: none. Idempotent: pure. Cost: O(swaps and inputs), no row.
CREATE OR REPLACE FUNCTION swap_call(
    p_key bigint[], p_last bigint[], p_input_swap int[], p_input_last bigint[], p_input_file uuid[]
) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN encode(substr(sha256(concat_ws(' ', p_key, p_last, p_input_swap, p_input_last, p_input_file)::bytea), 1, 16),
              'hex')::uuid;  -- not md5, which a Postgres in FIPS mode refuses

-- Keep the answer of a call.
-- Locks: none but the new row. The caller holds the file's row, so that two copies of a call come one after the other.
-- Idempotent: no, the caller looks first. Cost: one insert.
CREATE OR REPLACE FUNCTION keep_swap_answer(
    p_job_id bigint, p_epoch bigint, p_file_id uuid, p_call uuid, p_outcomes smallint[]
) RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO swap_answers (job_id, epoch, file_id, call, outcomes)
    VALUES (p_job_id, p_epoch, p_file_id, p_call, p_outcomes)
$$;

-- Forget the answers of leases that ended: their calls are refused by assert_job.
-- Locks: the rows. Idempotent: yes. Cost: O(answers); those of some leases, as housekeeping calls it often.
CREATE OR REPLACE FUNCTION forget_swap_answers() RETURNS void
LANGUAGE sql VOLATILE AS $$
    DELETE FROM swap_answers a
     WHERE NOT EXISTS (SELECT FROM jobs j WHERE j.job_id = a.job_id AND j.epoch = a.epoch AND j.state = job_leased())
$$;

-- Fail the statement if it did not change as many rows as it counted: a counter would be wrong from then on, and by it an
-- object could be deleted that records are in.
-- Locks: none. Idempotent: pure. Cost: none.
CREATE OR REPLACE FUNCTION assert_changed(p_what text, p_counted bigint, p_changed bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_counted IS DISTINCT FROM p_changed THEN
        RAISE EXCEPTION 'a swap did not change what it counted: what=% counted=% changed=%', p_what, p_counted, p_changed;
    END IF;
END $$;
