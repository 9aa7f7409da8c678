-- Replace a group's saved state; no row when the coordinator epoch is no longer the group's.
-- Locks: the group's row. Idempotent: yes. Cost: one update.
UPDATE consumer_groups
   SET state = %(state)s::bytea
 WHERE group_id = %(group_id)s::text AND coordinator_epoch = %(coordinator_epoch)s::bigint
RETURNING true
