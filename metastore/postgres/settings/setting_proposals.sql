-- What running processes report together, in rows of three kinds. 'proposal': a setting without a value, what is proposed
-- for it, and the processes that propose it. 'role': the processes that have it. 'unreported': the unfenced agents that
-- have not reported; they run, or did until lately, and may have other settings.
-- Locks: none. Idempotent: reads only. Cost: reads one row per process and per agent, and one index probe per setting
-- of each process.
WITH running AS (
    SELECT process, roles, node_id, names, proposals
      FROM setting_reports WHERE reported_at >= wall_time() - report_lifetime()
)
SELECT 'proposal', p.name, p.proposal, array_agg(r.process ORDER BY r.process)
  FROM running r CROSS JOIN LATERAL unnest(r.names, r.proposals) AS p (name, proposal)
 WHERE NOT EXISTS (SELECT FROM configs c
                    WHERE c.resource_type = broker_resource() AND c.resource_name = '' AND c.name = p.name)
 GROUP BY p.name, p.proposal
UNION ALL
SELECT 'role', role, NULL, array_agg(r.process) FROM running r CROSS JOIN LATERAL unnest(r.roles) AS role GROUP BY role
UNION ALL
SELECT 'unreported', NULL, NULL, array_agg(a.node_id::text) FROM agents a
 WHERE NOT a.fenced AND NOT EXISTS (SELECT FROM running r WHERE r.node_id = a.node_id)
HAVING count(*) > 0
