-- Ask for all that is committed by now to be moved.
-- Locks: the one row. Idempotent: yes. Cost: one update.
CREATE OR REPLACE FUNCTION ask_inline_move() RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE inline_moves SET asked_at = wall_time();
END $$;
