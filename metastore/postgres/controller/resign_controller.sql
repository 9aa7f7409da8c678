-- Let a standby take the controller's lease at once; nothing happens under a stale epoch.
-- Locks: the controller's row. Idempotent: yes. Cost: one HOT update.
WITH resigned AS (
    UPDATE controller SET deadline = '-infinity'
      FROM assert_life(%(life)s::int) AS life (is_current)
     WHERE controller_epoch = %(controller_epoch)s::bigint AND is_current RETURNING 1)
SELECT count(*) FROM resigned
