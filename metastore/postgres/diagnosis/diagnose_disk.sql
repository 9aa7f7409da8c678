-- Count so many rows that they do not fit into work_mem: they go to a temporary file, which a full disk refuses.
-- Locks: none. Idempotent: reads only, and the file is gone afterwards. Cost: 3 MB of temporary file, 30 ms.
SELECT count(*)::int FROM generate_series(1, 200000)
