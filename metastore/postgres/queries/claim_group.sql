-- Make a registered, unfenced agent a group's coordinator, under a higher coordinator epoch; no row
-- when the agent is not one.
-- Locks: the group's row. Idempotent: no, but a repeated claim only raises the epoch again.
-- Cost: one upsert.
INSERT INTO consumer_groups AS g (group_id, coordinator_epoch, node_id, state)
SELECT %(group_id)s::text, 1, a.node_id, ''::bytea
  FROM agents a
 WHERE a.node_id = %(node_id)s::int AND a.broker_epoch = %(broker_epoch)s::bigint AND NOT a.fenced
ON CONFLICT (group_id) DO UPDATE
   SET coordinator_epoch = g.coordinator_epoch + 1, node_id = excluded.node_id
RETURNING coordinator_epoch, state
