-- The metastore's bucket; NULLs if no process has recorded it yet.
-- Locks: none. Idempotent: reads only. Cost: one row.
SELECT bucket_id, bucket_address FROM cluster
