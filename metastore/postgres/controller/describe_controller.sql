-- The holder of the controller's lease; no row while there is none.
-- Locks: none. Idempotent: reads only. Cost: one row.
SELECT controller_id, controller_epoch FROM controller WHERE deadline >= wall_time()
