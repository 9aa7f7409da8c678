-- The database's clock in ms since the epoch.
-- Locks: none. Idempotent: reads only. Cost: none.
SELECT wall_ms()
