-- Give a read pin back.
-- Locks: its row. Idempotent: yes. Cost: one row.
WITH gone AS (DELETE FROM read_pins WHERE pin_id = %(pin_id)s::uuid RETURNING 1) SELECT count(*) FROM gone
