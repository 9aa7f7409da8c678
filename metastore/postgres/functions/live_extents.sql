-- What is live in some files, by partition: extents packed (packing.sql) in offset order. What lies below a
-- log start is dead, though retention may not have come by yet; so is all of a deleted topic.
-- Locks: none; one snapshot for all. Idempotent: reads only. Cost: two index probes per extent.
CREATE OR REPLACE FUNCTION live_extents(p_file_ids uuid[])
RETURNS TABLE (key bigint, topic uuid, index int, compression_type text, packed bytea)
LANGUAGE plpgsql STABLE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
BEGIN
    RETURN QUERY
    SELECT e.partition_key, p.topic_id, p.partition_index, coalesce(min(c.value), min(d.value), ''),
           string_agg(pack_extent(e.partition_key, e.base_offset, e.last_offset, e.file_id, e.position, e.length,
                                  e.leader_epoch, e.max_timestamp), ''::bytea ORDER BY e.last_offset)
      FROM extents e
      JOIN partitions p ON p.partition_key = e.partition_key AND e.last_offset >= p.log_start_offset
      JOIN topics t ON t.topic_id = p.topic_id
      LEFT JOIN configs c ON c.resource_type = 2 AND c.resource_name = t.name AND c.name = 'compression.type'
      LEFT JOIN configs d ON d.resource_type = 4 AND d.resource_name = '' AND d.name = 'compression.type'
     WHERE e.file_id = ANY (p_file_ids)
     GROUP BY e.partition_key, p.topic_id, p.partition_index
     ORDER BY e.partition_key;
END $$;
