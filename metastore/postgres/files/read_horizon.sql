-- The read pins: files that are dead since before this are no longer needed by a reader. A lease of a job that is
-- done once pins every file that was live when it began: its holder plans under it and reads what it planned.
-- Periodic jobs keep house and plan no reads, p_janitor's least of all. Nor do the kinds that are named here: upkeep of
-- tables reads data files of a catalog, for hours, and a catalog that hangs keeps its lease; the archive of the audit
-- trail reads rows; links read another cluster. Any other kind pins, also one that this version does not know (tests/metastore/test_lease_kinds.py).
-- Heartbeats keep the pin, the lease's end ends it.
-- A file that becomes dead while a statement runs has a time from within that statement, and a plan that was made
-- meanwhile still names it; so a pin reaches back as far as a statement may run.
-- Locks: none. Idempotent: reads only. Cost: one row per unfinished job.
CREATE OR REPLACE FUNCTION read_horizon(p_janitor bigint) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
BEGIN
    RETURN (SELECT coalesce(min(leased_at) - greatest(current_setting('statement_timeout')::interval, interval '1 minute'),
                            'infinity')
              FROM jobs
             WHERE state = job_leased() AND period_ms IS NULL
               AND split_part(kind, ' ', 1) NOT IN ('table-upkeep', 'table-orphans', 'archive-audit-rows',
                                           'link-topics', 'link-copy')
               AND due_at >= wall_time() AND job_id <> p_janitor);
END $$;
