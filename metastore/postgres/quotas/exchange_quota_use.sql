-- Store what an agent used of shared limits, and return what the other agents reported in the last 5 seconds.
-- Rows of agents that have been silent for a minute are dropped; rows that another session holds are left to it.
-- Locks: the report's row; rows that are dropped. Idempotent: yes. Cost: one update in place; reads one row per agent.
CREATE OR REPLACE FUNCTION exchange_quota_use(p_node_id int, p_report text)
RETURNS TABLE (node_id int, report text)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO quota_use AS q (node_id, report, reported_at) VALUES (p_node_id, p_report, wall_time())
    ON CONFLICT ON CONSTRAINT quota_use_pkey
    DO UPDATE SET report = excluded.report, reported_at = excluded.reported_at;
    DELETE FROM quota_use g WHERE g.node_id IN (
        SELECT s.node_id FROM quota_use s
         WHERE s.reported_at < wall_time() - interval '1 minute' FOR UPDATE SKIP LOCKED
    );
    RETURN QUERY SELECT q.node_id, q.report FROM quota_use q
                  WHERE q.node_id <> p_node_id AND q.reported_at >= wall_time() - interval '5 seconds';
END $$;
