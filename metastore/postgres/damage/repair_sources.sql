-- Files that may have the sound bytes of what a damaged merged file has at these offsets of a partition: those of the segments
-- that it replaced (with their offsets), then flushed files that died since it was begun, the nearest in time first. Their
-- objects are there until the janitor deletes them (held_for_repair).
-- Locks: none. Idempotent: reads only. Cost: a scan of the partition's segments from the offsets on, and of the dead files.
CREATE OR REPLACE FUNCTION repair_sources(p_file_id uuid, p_key bigint, p_first bigint, p_last bigint, p_limit int)
RETURNS TABLE (file_id uuid, size bigint, start_offset bigint, end_offset bigint)
LANGUAGE sql STABLE AS $$
    WITH damaged AS (SELECT m.file_id, m.committed_at FROM segment_files m WHERE m.file_id = p_file_id)
    SELECT file_id, size, start_offset, end_offset
      FROM (SELECT f.file_id, f.size, s.start_offset, s.end_offset, 0 AS sort, interval '0' AS distance
              FROM partitions p
              JOIN remote_segments s ON s.topic_id = p.topic_id AND s.partition_index = p.partition_index
                                    AND s.end_offset >= p_first AND s.start_offset <= p_last
              JOIN segment_files f ON f.file_id = s.file_id AND f.state IN (file_live(), file_deleting())
             WHERE p.partition_key = p_key AND s.file_id <> p_file_id
            UNION ALL
            SELECT f.file_id, f.size, -1, -1, 1, abs_interval(f.dead_at - d.committed_at)
              FROM damaged d
              JOIN segment_files f ON f.file_id <> d.file_id AND f.level = 0 AND f.dead_at IS NOT NULL
                                  AND f.committed_at <= d.committed_at AND f.state IN (file_live(), file_deleting())
           ) AS found
     ORDER BY sort, distance, file_id
     LIMIT p_limit
$$;

-- The length of an interval, without its sign.
-- Locks: none. Idempotent: pure. Cost: none.
CREATE OR REPLACE FUNCTION abs_interval(p_interval interval) RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN greatest(p_interval, -p_interval);
