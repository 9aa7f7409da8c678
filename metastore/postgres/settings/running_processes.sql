-- How many running processes have each role, by their reports; and the unfenced agents that have not reported, under
-- the role 'unreported': they run, or did until lately, and may have other settings.
-- Locks: none. Idempotent: reads only. Cost: reads one row per process and per agent.
WITH running AS (
    SELECT roles, node_id FROM setting_reports WHERE reported_at >= wall_time() - report_lifetime()
)
SELECT role, count(*)::int FROM running CROSS JOIN LATERAL unnest(roles) AS role GROUP BY role
UNION ALL
SELECT 'unreported', count(*)::int FROM agents a
 WHERE NOT a.fenced AND NOT EXISTS (SELECT FROM running r WHERE r.node_id = a.node_id)
