-- The damaged extents that are live, by topic, partition and offset; and how many there are in all.
-- Locks: none. Idempotent: reads only. Cost: a scan of damaged_extents, with three probes per row.
CREATE OR REPLACE FUNCTION list_damage(p_limit int)
RETURNS TABLE (topic text, partition_index int, file_id uuid, file_position bigint, length bigint, partition_key bigint,
               base_offset bigint, last_offset bigint, leader_epoch int, max_timestamp bigint, kind smallint, why text,
               first_damaged bigint, last_damaged bigint, found_ms bigint, checked_ms bigint, total bigint)
LANGUAGE sql STABLE AS $$
    SELECT t.name, p.partition_index, d.file_id, d.position, d.length, d.partition_key,
           d.base_offset, d.last_offset, e.leader_epoch, e.max_timestamp, d.kind, d.why,
           greatest(coalesce(d.first_damaged, d.base_offset), p.log_start_offset),
           coalesce(d.last_damaged, d.last_offset), to_ms(d.found_at), to_ms(d.checked_at), count(*) OVER ()
      FROM damaged_extents d
      JOIN extents e ON e.partition_key = d.partition_key AND e.last_offset = d.last_offset
                    AND e.file_id = d.file_id AND e.position = d.position
      JOIN partitions p ON p.partition_key = d.partition_key
                       AND coalesce(d.last_damaged, d.last_offset) >= p.log_start_offset
      JOIN topics t ON t.topic_id = p.topic_id
     ORDER BY t.name, p.partition_index, d.base_offset
     LIMIT p_limit
$$;
