-- Forget up to p_limit jobs that ended over a day ago; how many. And read pins with an ended term, and the answers of swaps
-- under leases that ended, and damage of extents that are gone.
-- Locks: those rows, and those of the pins, answers and damage. Idempotent: repeating continues. Cost: O(pruned), through
-- jobs_finished; a probe per damaged extent.
CREATE OR REPLACE FUNCTION prune_jobs(p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_pruned int;
BEGIN
    PERFORM drop_ended_pins();
    PERFORM forget_swap_answers();
    PERFORM forget_damage();
    DELETE FROM jobs
     WHERE job_id IN (SELECT job_id FROM jobs
                       WHERE state IN (job_done(), job_given_up()) AND ended_at < wall_time() - interval '1 day'
                       ORDER BY ended_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS v_pruned = ROW_COUNT;
    RETURN v_pruned;
END $$;
