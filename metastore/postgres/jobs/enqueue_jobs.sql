-- Add jobs, as arrays of one length; whether each was added: not while its key is taken by an
-- unfinished job of its kind. With p_by_job, only while that lease holds (assert_job).
-- Locks: the planner's job row. Idempotent: while the jobs are unfinished. Cost: one insert per job.
CREATE OR REPLACE FUNCTION enqueue_jobs(
    p_by_job bigint, p_by_epoch bigint,
    p_kinds text[], p_keys text[], p_payloads bytea[], p_priorities smallint[], p_delays interval[], p_max_attempts int[]
) RETURNS SETOF boolean
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
BEGIN
    IF p_by_job IS NOT NULL THEN
        PERFORM assert_job(p_by_job, p_by_epoch);
    END IF;
    v_now := wall_time();
    RETURN QUERY
        WITH added AS (
            INSERT INTO jobs (kind, key, payload, priority, max_attempts, state, due_at, created_at)
            SELECT kind, key, payload, priority, max_attempts, job_waiting(), v_now + delay, v_now
              FROM unnest(p_kinds, p_keys, p_payloads, p_priorities, p_delays, p_max_attempts)
                   AS j (kind, key, payload, priority, delay, max_attempts)
             ORDER BY kind, key
            ON CONFLICT (kind, key) WHERE state IN (job_waiting(), job_leased()) DO NOTHING
            RETURNING kind, key
        )
        SELECT a.key IS NOT NULL
          FROM unnest(p_kinds, p_keys) WITH ORDINALITY AS j (kind, key, number)
          LEFT JOIN added a ON a.kind = j.kind AND a.key = j.key
         ORDER BY number;
END $$;

-- Make sure that periodic jobs are there, as arrays of one length; false for a stale controller epoch.
-- A new one is due at once. A waiting one is never due later than one period from now, also when
-- the period became shorter or the clock went back.
-- Locks: controller (shared), then the jobs' rows by kind and key. Idempotent: yes.
-- Cost: one index probe per job; one update for each with another period, priority or payload.
CREATE OR REPLACE FUNCTION schedule_jobs(
    p_controller_epoch bigint,
    p_kinds text[], p_keys text[], p_payloads bytea[], p_priorities smallint[], p_periods bigint[]
) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
BEGIN
    IF NOT is_controller(p_controller_epoch) THEN
        RETURN false;
    END IF;
    v_now := wall_time();
    INSERT INTO jobs AS j (kind, key, payload, priority, period_ms, state, due_at, created_at)
    SELECT kind, key, payload, priority, period_ms, job_waiting(), v_now, v_now
      FROM unnest(p_kinds, p_keys, p_payloads, p_priorities, p_periods) AS s (kind, key, payload, priority, period_ms)
     ORDER BY kind, key
    ON CONFLICT (kind, key) WHERE state IN (job_waiting(), job_leased()) DO UPDATE
       SET payload = excluded.payload, priority = excluded.priority, period_ms = excluded.period_ms,
           max_attempts = NULL,
           due_at = CASE WHEN j.state = job_waiting() THEN least(j.due_at, v_now + excluded.period_ms * interval '1 ms')
                         ELSE j.due_at END
     WHERE (j.payload, j.priority, j.period_ms) IS DISTINCT FROM (excluded.payload, excluded.priority, excluded.period_ms)
        OR (j.state = job_waiting() AND j.due_at > v_now + excluded.period_ms * interval '1 ms');
    RETURN true;
END $$;
