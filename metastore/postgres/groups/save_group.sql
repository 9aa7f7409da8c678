-- Replace what a group's coordinator saved; no row when the coordinator epoch is no longer the group's.
-- Locks: the group's row. Idempotent: yes. Cost: one update.
UPDATE consumer_groups
   SET kind = %(kind)s::text, state = %(state)s::text, protocol_type = %(protocol_type)s::text,
       subscribed = %(subscribed)s::text[], saved = %(saved)s::bytea,
       empty_since = CASE WHEN %(state)s::text = 'Empty' THEN coalesce(empty_since, wall_time()) END,
       expiry_slot = expiry_slot(wall_time())
  FROM assert_life(%(life)s::int) AS life (is_current)
 WHERE is_current AND group_id = %(group_id)s::text AND coordinator_epoch = %(coordinator_epoch)s::bigint
RETURNING true
