-- How often objects were deleted under this metastore, and its incarnation.
-- Locks: none. Idempotent: reads only. Cost: two rows.
CREATE OR REPLACE FUNCTION janitor_state() RETURNS TABLE (incarnation_id uuid, generation bigint)
LANGUAGE sql STABLE AS $$
    SELECT c.incarnation_id, j.generation FROM cluster c CROSS JOIN janitor j
$$;

-- Begin the next generation before objects are deleted.
-- Locks: the job's row, shared; the janitor's row. Idempotent: no, an answer that is lost costs a number.
-- Cost: one HOT update.
CREATE OR REPLACE FUNCTION begin_generation(p_job_id bigint, p_epoch bigint, p_incarnation_id uuid) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_generation bigint;
BEGIN
    PERFORM assert_janitor(p_job_id, p_epoch, p_incarnation_id);
    UPDATE janitor SET generation = generation + 1 RETURNING generation INTO v_generation;
    RETURN v_generation;
END $$;

-- Continue after a restore: from a generation that is higher than any that the bucket has seen.
-- Locks: the janitor's row. Idempotent: no, see above. Cost: one HOT update.
CREATE OR REPLACE FUNCTION resume_janitor(p_seen bigint) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    UPDATE janitor SET generation = greatest(generation, p_seen) + 1 RETURNING generation
$$;
