-- The live extents of these partitions that begin below p_ends[i] and were found damaged within the last day, so that they
-- are not read again yet.
-- Locks: none. Idempotent: reads only. Cost: one probe per partition, two per damaged extent.
CREATE OR REPLACE FUNCTION damaged_parts(p_keys bigint[], p_ends bigint[])
RETURNS TABLE (file_id uuid, file_position bigint, length bigint, partition_key bigint, base_offset bigint,
               last_offset bigint, kind smallint, why text)
LANGUAGE sql STABLE AS $$
    SELECT d.file_id, d.position, d.length, d.partition_key, d.base_offset, d.last_offset, d.kind, d.why
      FROM unnest(p_keys, p_ends) AS t (key, wanted)
      JOIN damaged_extents d ON d.partition_key = t.key AND d.base_offset < t.wanted AND is_held_back(d.checked_at)
      JOIN partitions p ON p.partition_key = d.partition_key AND d.last_offset >= p.log_start_offset
      JOIN extents e ON e.partition_key = d.partition_key AND e.last_offset = d.last_offset
                    AND e.file_id = d.file_id AND e.position = d.position
     ORDER BY d.partition_key, d.last_offset;
$$;
