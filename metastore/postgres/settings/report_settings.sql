-- The report of one running process: its roles, and what its file says about the cluster's settings.

-- Store or renew a report, and drop reports of processes that have been gone for an hour.
-- Locks: the report's row; rows that are dropped. Idempotent: yes. Cost: one update; reads one row per process.
CREATE OR REPLACE FUNCTION report_settings(
    p_incarnation_id uuid, p_process text, p_roles text[], p_node_id int, p_names text[], p_proposals text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO setting_reports AS r (incarnation_id, process, roles, node_id, names, proposals, reported_at)
    VALUES (p_incarnation_id, p_process, p_roles, p_node_id, p_names, p_proposals, wall_time())
    ON CONFLICT (incarnation_id)
    DO UPDATE SET node_id = excluded.node_id, reported_at = excluded.reported_at;
    DELETE FROM setting_reports WHERE reported_at < wall_time() - interval '1 hour';
END $$;

-- Take a report back: the process stops.
-- Locks: the report's row. Idempotent: yes. Cost: one index probe.
CREATE OR REPLACE FUNCTION withdraw_settings(p_incarnation_id uuid) RETURNS void
LANGUAGE sql VOLATILE AS $$
    DELETE FROM setting_reports WHERE incarnation_id = p_incarnation_id
$$;

-- How long a report counts. Longer than a process pauses or waits for the metastore: a report that stops to count too
-- early hides a disagreement. Locks: none. Idempotent: pure. Cost: none.
CREATE OR REPLACE FUNCTION report_lifetime() RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN interval '60 seconds';
