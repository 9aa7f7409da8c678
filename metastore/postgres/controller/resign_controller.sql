-- Let a standby take the controller's lease at once; nothing happens under a stale epoch.
-- Locks: the controller's row. Idempotent: yes. Cost: one HOT update.
WITH resigned AS (
    UPDATE controller SET deadline = '-infinity'
     WHERE controller_epoch = %(controller_epoch)s::bigint RETURNING 1)
SELECT count(*) FROM resigned
