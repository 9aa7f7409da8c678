-- The next offset of the metadata log.
-- Locks: none. Idempotent: reads only. Cost: one row.
SELECT next_offset FROM metadata_head
