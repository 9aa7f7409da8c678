-- Grant a read pin: a lease of a job that no worker takes (read_horizon.sql), for p_term from now. Two NULLs and the
-- limit if p_term exceeds the cluster's read.pin.max.ms (p_default_max while it has none). Pins with an ended term
-- are removed here too, so an unreleased one leaves nothing.
-- Locks: the rows of ended pins, skipping those that are locked. Idempotent: no; a lost answer costs one pin.
-- Cost: one insert, and one row per unfinished job.
CREATE OR REPLACE FUNCTION pin_reads(p_holder text, p_term interval, p_default_max interval)
RETURNS TABLE (job_id bigint, epoch bigint, max_term_ms bigint)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_max interval := coalesce(cluster_interval('read.pin.max.ms'), p_default_max);
    v_now timestamptz;
    v_id  bigint;
    v_epoch bigint;
BEGIN
    PERFORM drop_ended_pins();
    IF p_term <= v_max THEN
        v_now := wall_time();
        INSERT INTO jobs AS j (kind, key, payload, priority, max_attempts, state, due_at, epoch, worker, attempts,
                               created_at, leased_at)
        VALUES ('read', gen_random_uuid()::text, '', 0, 1, job_leased(), v_now + p_term, greatest(1, life_floor64(cluster_life())), p_holder, 1,
                v_now, v_now)
        RETURNING j.job_id, j.epoch INTO v_id, v_epoch;
    END IF;
    RETURN QUERY SELECT v_id, v_epoch, (extract(epoch FROM v_max) * 1000)::bigint;
END $$;

-- Remove pins with an ended term.
-- Locks: their rows, skipping those that are locked. Idempotent: yes. Cost: one row per unfinished job.
CREATE OR REPLACE FUNCTION drop_ended_pins() RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
BEGIN
    DELETE FROM jobs
     WHERE job_id IN (SELECT job_id FROM jobs
                       WHERE kind = 'read' AND state IN (job_waiting(), job_leased()) AND due_at < wall_time()
                         FOR UPDATE SKIP LOCKED);
END $$;

-- End pins before their term: p_job_ids with their epochs, as arrays of one length.
-- Locks: their rows. Idempotent: yes. Cost: one delete per pin.
CREATE OR REPLACE FUNCTION release_pins(p_job_ids bigint[], p_epochs bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    DELETE FROM jobs j
     USING unnest(p_job_ids, p_epochs) AS pin (job_id, epoch)
     WHERE j.job_id = pin.job_id AND j.epoch = pin.epoch AND j.kind = 'read';
END $$;
