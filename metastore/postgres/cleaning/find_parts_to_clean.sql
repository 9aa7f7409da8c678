-- What a pass of cleaning by key reads: the extents of some partitions from the log start to p_ends[i], packed in offset
-- order. Only of topics that are compacted now, not of copies that links keep (their sources are cleaned), and only extents
-- that are whole below the roll offset and the last stable offset. high_watermark: of the same snapshot; the pass keeps the record or marker before it.
-- One row per such partition, and one with the time and NULLs if there is none.
-- Locks: none; one snapshot for all. Idempotent: reads only. Cost: one index probe per extent.
CREATE OR REPLACE FUNCTION find_parts_to_clean(p_keys bigint[], p_ends bigint[])
RETURNS TABLE (now_ms bigint, partition_key bigint, topic_id uuid, partition_index int, compression_type text,
               max_message_bytes text, packed bytea, roll_offset bigint, cleaned_offset bigint,
               high_watermark bigint)
LANGUAGE plpgsql STABLE
SET jit = off
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT wall_ms(), l.partition_key, l.topic_id, l.partition_index,
           coalesce(topic_config(l.topic_id, 'compression.type', 'compression.type'), ''),
           topic_config(l.topic_id, 'max.message.bytes', 'message.max.bytes'), l.packed, l.roll_offset,
           l.cleaned_offset, l.high_watermark
      FROM (SELECT) AS now
      LEFT JOIN (
          SELECT p.partition_key, p.topic_id, p.partition_index, c.roll_offset, c.cleaned_offset, h.high_watermark,
                 (SELECT coalesce(string_agg(pack_extent(e.partition_key, e.base_offset, e.last_offset, e.file_id, e.position,
                                                e.length, e.leader_epoch, e.max_timestamp), ''::bytea
                                    ORDER BY e.last_offset), ''::bytea)
                    FROM extents e
                   WHERE e.partition_key = p.partition_key AND e.last_offset >= p.log_start_offset
                     AND e.last_offset < least(t.wanted, c.roll_offset, h.first_open_offset)) AS packed
            FROM unnest(p_keys, p_ends) AS t (key, wanted)
            JOIN partitions p ON p.partition_key = t.key
            JOIN cleaned_partitions c ON c.partition_key = p.partition_key
           CROSS JOIN LATERAL (SELECT high_watermark, first_open_offset FROM partition_heads
                                WHERE partition_key = p.partition_key ORDER BY update_block DESC LIMIT 1) AS h
           WHERE p.state <> state_linked() AND is_compacted(p.topic_id)) AS l ON true
     ORDER BY l.partition_key;
END $$;

-- The same for workers of the release before, which know of no record that stays: without the extent that ends the log.
-- Locks, idempotence, cost: as find_parts_to_clean.
CREATE OR REPLACE FUNCTION find_cleanable_extents(p_keys bigint[], p_ends bigint[])
RETURNS TABLE (now_ms bigint, partition_key bigint, topic_id uuid, partition_index int, compression_type text,
               max_message_bytes text, packed bytea, roll_offset bigint, cleaned_offset bigint)
LANGUAGE sql STABLE AS $$
    SELECT now_ms, partition_key, topic_id, partition_index, compression_type, max_message_bytes, packed, roll_offset,
           cleaned_offset
      FROM find_parts_to_clean(p_keys, ARRAY(
          SELECT least(t.wanted, (SELECT high_watermark - 1 FROM partition_heads WHERE partition_key = t.key
                                   ORDER BY update_block DESC LIMIT 1))
            FROM unnest(p_keys, p_ends) WITH ORDINALITY AS t (key, wanted, number) ORDER BY t.number))
$$;

-- Whether records of the topic are removed by key: compact is one item of its cleanup.policy.
-- Locks: none. Idempotent: reads only. Cost: three index probes.
CREATE OR REPLACE FUNCTION is_compacted(p_topic_id uuid) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT 'compact' = ANY (regexp_split_to_array(
        btrim(coalesce(topic_config(p_topic_id, 'cleanup.policy', 'log.cleanup.policy'), 'delete')), '\s*,\s*'));
$$;
