-- The agents that are not fenced and have not said in a heartbeat that they applied the log up to an offset.
-- Locks: none. Idempotent: reads only. Cost: reads agents and agent_leases, one row per agent each.
SELECT a.node_id
  FROM agents a JOIN agent_leases l USING (node_id)
 WHERE NOT a.fenced AND l.metadata_offset < %(offset)s::bigint
 ORDER BY a.node_id
