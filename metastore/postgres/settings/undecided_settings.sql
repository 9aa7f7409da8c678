-- The settings without a value that running processes propose values for: one row per setting and proposal, with the
-- processes that propose it.
-- Locks: none. Idempotent: reads only. Cost: reads one row per process and one index probe per setting of each.
SELECT p.name, p.proposal, array_agg(r.process ORDER BY r.process)
  FROM setting_reports r
 CROSS JOIN LATERAL unnest(r.names, r.proposals) AS p (name, proposal)
 WHERE r.reported_at >= wall_time() - report_lifetime()
   AND NOT EXISTS (SELECT FROM configs c
                    WHERE c.resource_type = broker_resource() AND c.resource_name = '' AND c.name = p.name)
 GROUP BY p.name, p.proposal
 ORDER BY p.name, p.proposal
