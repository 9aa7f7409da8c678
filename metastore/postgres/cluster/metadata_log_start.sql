-- The lowest offset of the metadata log that is still kept.
-- Locks: none. Idempotent: reads only. Cost: one index probe.
SELECT coalesce((SELECT min(record_offset) FROM metadata_log), (SELECT next_offset FROM metadata_head))
