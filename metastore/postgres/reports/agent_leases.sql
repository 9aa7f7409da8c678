-- The last heartbeat of each registered agent.
-- Locks: none. Idempotent: reads only. Cost: reads agent_leases and agents, one row per agent.
SELECT l.node_id, l.metadata_offset, (extract(epoch FROM l.last_contact_at) * 1000)::bigint
  FROM agent_leases l
  JOIN agents a USING (node_id)
 ORDER BY l.node_id
