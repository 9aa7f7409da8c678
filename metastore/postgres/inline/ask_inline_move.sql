-- Ask for all that is committed by now to be moved.
-- Locks: the one row. Idempotent: yes. Cost: one update.
UPDATE inline_moves SET asked_at = wall_time() RETURNING 1
