-- Files that may have the sound bytes of what a damaged merged file has at these offsets of a partition: those of the segments
-- that it replaced (with their offsets), then flushed files that became dead since it was begun, the nearest in time first. Their
-- objects are there until the janitor deletes them (held_for_repair). Below the cleaned offset the offsets are left out: a
-- batch there may have records that the cleaning removed.
-- Locks: none. Idempotent: reads only. Cost: a scan of the partition's segments from the offsets on, and of the dead files.
CREATE OR REPLACE FUNCTION repair_sources(p_file_id uuid, p_key bigint, p_first bigint, p_last bigint, p_limit int)
RETURNS TABLE (file_id uuid, size bigint, start_offset bigint, end_offset bigint)
LANGUAGE sql STABLE AS $$
    WITH damaged AS (
        SELECT m.file_id, m.committed_at,
               coalesce((SELECT c.cleaned_offset FROM cleaned_partitions c WHERE c.partition_key = p_key), 0) > p_first
               AS is_cleaned
          FROM segment_files m WHERE m.file_id = p_file_id AND m.level > 0
    )
    SELECT f.file_id, f.size, found.start_offset, found.end_offset
      FROM (SELECT s.file_id, CASE WHEN d.is_cleaned THEN -1 ELSE s.start_offset END AS start_offset,
                   CASE WHEN d.is_cleaned THEN -1 ELSE s.end_offset END AS end_offset, 0 AS sort, 0 AS distance
              FROM damaged d
              JOIN partitions p ON p.partition_key = p_key
              JOIN remote_segments s ON s.topic_id = p.topic_id AND s.partition_index = p.partition_index
                                    AND s.end_offset >= p_first AND s.start_offset <= p_last
            UNION ALL
            SELECT f.file_id, -1, -1, 1, abs(to_ms(f.dead_at) - to_ms(d.committed_at))
              FROM damaged d
              JOIN segment_files f ON f.level = 0 AND f.dead_at IS NOT NULL AND f.committed_at <= d.committed_at
           ) AS found
      JOIN segment_files f USING (file_id)
     WHERE f.file_id <> p_file_id AND f.state IN (file_live(), file_deleting())
     ORDER BY found.sort, found.distance, f.file_id
     LIMIT p_limit
$$;
