-- For how many seconds the decided bulk write that waits the longest has made no progress; 0 if all are complete.
-- Locks: none. Idempotent: reads only. Cost: one index probe.
SELECT coalesce(extract(epoch FROM wall_time() - min(changed_at)), 0)::float8 FROM bulk_writes WHERE next_chunk < chunks
