-- Those of the ids that no row names.
-- Locks: none. Idempotent: reads only. Cost: an index probe per id.
SELECT id FROM unnest(%(ids)s::uuid[]) AS id
 WHERE NOT EXISTS (SELECT FROM segment_files f WHERE f.file_id = id)
