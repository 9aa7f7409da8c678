-- The newest snapshot of the metadata log; no row when there is none.
-- Locks: none. Idempotent: reads only. Cost: the snapshot's bytes.
SELECT end_offset, data FROM metadata_snapshots ORDER BY end_offset DESC LIMIT 1
