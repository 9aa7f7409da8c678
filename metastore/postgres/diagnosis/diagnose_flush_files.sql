-- The newest files that agents put into the bucket: how many, how many of them have at most so many bytes, and over how
-- many milliseconds they were created. Not merged ones, inline ones, and those of bulk writes: their ids are no UUIDv7.
-- Locks: none. Idempotent: reads only. Cost: one index walk over at most 4,000 rows.
SELECT count(*)::int, (count(*) FILTER (WHERE size <= %(small_bytes)s))::int,
       coalesce(extract(epoch FROM inline_birth(max(file_id::text)::uuid) - inline_birth(min(file_id::text)::uuid)) * 1000, 0)::bigint
  FROM (SELECT file_id, size
          FROM (SELECT file_id, size, level, state FROM segment_files ORDER BY file_id DESC LIMIT 4000) AS newest
         WHERE level = 0 AND state = file_live() AND substring(file_id::text FROM 15 FOR 1) = '7'
         LIMIT 1000) AS flushed
