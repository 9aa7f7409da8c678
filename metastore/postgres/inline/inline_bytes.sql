-- Which of the files have their bytes here.
-- Locks: none. Idempotent: reads only. Cost: an index probe per file.
SELECT id FROM unnest(%(file_ids)s::uuid[]) AS id
 WHERE EXISTS (SELECT FROM inline_files i WHERE i.slot = inline_slot(id) AND i.file_id = id)
