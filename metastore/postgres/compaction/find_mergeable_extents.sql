-- What is live in some files, by partition: extents packed (packing.sql) in offset order, and what the topic's
-- configs say of its batches. Extents below a log start are dead, even before retention removes them; so
-- are all of a deleted topic; those that are held back as damaged (held_back.sql) are left out. One row with the time and NULLs when nothing is live.
-- roll_offset, cleaned_offset: of a topic that is compacted by key, which no new extent crosses; else 0.
-- Locks: none; one snapshot for all. Idempotent: reads only. Cost: three index probes per extent.
CREATE OR REPLACE FUNCTION find_mergeable_extents(p_file_ids uuid[])
RETURNS TABLE (now_ms bigint, partition_key bigint, topic_id uuid, partition_index int, compression_type text,
               max_message_bytes text, packed bytea, roll_offset bigint, cleaned_offset bigint)
LANGUAGE plpgsql STABLE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT wall_ms(), l.partition_key, l.topic_id, l.partition_index,
           coalesce(topic_config(l.topic_id, 'compression.type', 'compression.type'), ''),
           topic_config(l.topic_id, 'max.message.bytes', 'message.max.bytes'), l.packed,
           coalesce(c.roll_offset, 0), coalesce(c.cleaned_offset, 0)
      FROM (SELECT) AS now
      LEFT JOIN (
          SELECT e.partition_key, p.topic_id, p.partition_index,
                 string_agg(pack_extent(e.partition_key, e.base_offset, e.last_offset, e.file_id, e.position, e.length,
                                        e.leader_epoch, e.max_timestamp), ''::bytea ORDER BY e.last_offset) AS packed
            FROM extents e
            JOIN partitions p ON p.partition_key = e.partition_key AND e.last_offset >= p.log_start_offset
            JOIN topics t ON t.topic_id = p.topic_id
           WHERE e.file_id = ANY (p_file_ids)
             AND NOT EXISTS (SELECT FROM damaged_extents d
                              WHERE d.file_id = e.file_id AND d.position = e.position AND is_held_back(d.checked_at))
           GROUP BY e.partition_key, p.topic_id, p.partition_index) AS l ON true
      LEFT JOIN cleaned_partitions c ON c.partition_key = l.partition_key
     ORDER BY l.partition_key;
END $$;

-- The same without the cleaned offset, for compactors of the release before.
-- Locks, idempotence, cost: as that.
CREATE OR REPLACE FUNCTION find_live_extents(p_file_ids uuid[])
RETURNS TABLE (now_ms bigint, partition_key bigint, topic_id uuid, partition_index int, compression_type text,
               max_message_bytes text, packed bytea, roll_offset bigint)
LANGUAGE sql STABLE AS $$
    SELECT now_ms, partition_key, topic_id, partition_index, compression_type, max_message_bytes, packed, roll_offset
      FROM find_mergeable_extents(p_file_ids)
$$;
