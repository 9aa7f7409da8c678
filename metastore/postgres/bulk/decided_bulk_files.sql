-- Files of decided attempts that are not in the bucket's record yet.
-- Locks: none. Idempotent: reads only. Cost: a row per answer.
SELECT file_id FROM decided_bulk_files ORDER BY file_id LIMIT %(most)s::int
